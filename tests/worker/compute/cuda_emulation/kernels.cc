// The kernels, as C++, in one file.
#include "worker/compute/cuda_bias.cu"
#include "worker/compute/cuda_convolution.cu"
#include "worker/compute/cuda_elementwise.cu"
#include "worker/compute/cuda_losses.cu"
#include "worker/compute/cuda_max_pool.cu"
