#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/compute/operations.h"

namespace weir::cuda {

// The kernels' launchers. Each queues its work on `stream` and returns the launch's error. Shapes and
// meanings are those of ComputeBackend unless said otherwise; everything is in device memory.

// ---- cuda_elementwise.cu ----
cudaError_t Fill(cudaStream_t stream, int64_t n, float value, float* x);
cudaError_t Axpy(cudaStream_t stream, int64_t n, float alpha, const float* x, float* y);
cudaError_t ActivationForward(cudaStream_t stream, Activation kind, int64_t n, const float* x, float* y);
cudaError_t ActivationBackward(cudaStream_t stream, Activation kind, int64_t n, const float* x,
                               const float* y, const float* dy, float* dx);
cudaError_t Dropout(cudaStream_t stream, const DropoutMask& mask, int64_t n, const float* x, float* y);
cudaError_t RoundToBfloat16(cudaStream_t stream, int64_t n, const float* x, uint16_t* y);
cudaError_t AddBias(cudaStream_t stream, int64_t rows, int64_t columns, const float* bias, float* x);

// ---- cuda_reductions.cu ----
// In two passes, of which the first leaves BiasGradientPartials(n, channels, positions) sums in `partials`.
// dbias[c] += the sum over i and p of dy[i, c, p], dy [n, channels, positions].
int64_t BiasGradientPartials(int64_t n, int64_t channels, int64_t positions);
cudaError_t BiasGradient(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* dy,
                         float* partials, float* dbias);
cudaError_t SoftmaxCrossEntropy(cudaStream_t stream, int64_t n, int64_t classes, const float* logits,
                                const int32_t* labels, float gradient_scale, float* losses, float* dlogits);
cudaError_t MeanSquaredError(cudaStream_t stream, int64_t n, int64_t outputs, const float* predictions,
                             const float* targets, float gradient_scale, float* losses, float* dpredictions);
cudaError_t SigmoidCrossEntropy(cudaStream_t stream, int64_t n, const float* logits, const float* targets,
                                float gradient_scale, float* losses, float* dlogits);
cudaError_t Argmax(cudaStream_t stream, int64_t n, int64_t classes, const float* logits, int32_t* indexes);

// ---- cuda_images.cu: convolution as products, max-pooling ----
// A product over all images at once takes its matrices with the images side by side: [rows, n * positions].
// T is float, or uint16_t for the bits of bfloat16. The number of elements fits int32_t.

// column [channels * kernel * kernel, n * positions], what each tap of the kernel sees.
template <typename T>
cudaError_t Im2Col(cudaStream_t stream, const Window& window, int64_t n, const float* x, T* column);
// dx, at each position the sum of everything that was taken from it.
cudaError_t Col2Im(cudaStream_t stream, const Window& window, int64_t n, const float* column, float* dx);
// out [channels, n * positions] from x [n, channels, positions].
template <typename T>
cudaError_t SideBySide(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* x,
                       T* out);
// The inverse: y [n, channels, positions] = x [channels, n * positions] + bias [channels].
cudaError_t ToImages(cudaStream_t stream, int64_t n, int64_t channels, int64_t positions, const float* x,
                     const float* bias, float* y);
cudaError_t MaxPoolForward(cudaStream_t stream, const Window& window, int64_t n, const float* x, float* y,
                           int32_t* argmax);
cudaError_t MaxPoolBackward(cudaStream_t stream, const Window& window, int64_t n, const float* dy,
                            const int32_t* argmax, float* dx);

}  // namespace weir::cuda
