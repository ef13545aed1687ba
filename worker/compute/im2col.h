#pragma once

#include "worker/compute/compute_backend.h"

namespace weir {

// One image [channels, height, width] as a matrix, so that convolution becomes a product: column
// [channels * kernel * kernel, out_height * out_width] holds what each tap of the kernel sees at each output
// position.
void Im2Col(const Window& window, const float* image, float* column);

// The transpose: each position of `image` becomes the sum of the values that Im2Col() takes from there.
void Col2Im(const Window& window, const float* column, float* image);

}  // namespace weir
