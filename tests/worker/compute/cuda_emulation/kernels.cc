// The kernels, as C++, in one file.
#include "worker/compute/cuda_elementwise.cu"
#include "worker/compute/cuda_images.cu"
#include "worker/compute/cuda_reductions.cu"
