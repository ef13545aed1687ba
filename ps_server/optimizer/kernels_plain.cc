#define WEIR_KERNELS kPlainKernels
#define WEIR_KERNELS_NAME "plain"
#include "ps_server/optimizer/kernels_impl.inc"
