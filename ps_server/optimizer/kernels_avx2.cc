#define WEIR_KERNELS kAvx2Kernels
#define WEIR_KERNELS_NAME "avx2"
#include "ps_server/optimizer/kernels_impl.inc"
