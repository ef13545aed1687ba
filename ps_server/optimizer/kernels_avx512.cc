#define WEIR_KERNELS kAvx512Kernels
#define WEIR_KERNELS_NAME "avx512"
#include "ps_server/optimizer/kernels_impl.inc"
