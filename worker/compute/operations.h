#pragma once

#include <cstdint>

namespace weir {

// Parameters of the operations of a ComputeBackend. Plain data, for code on any device.

// Square windows over [channels, height, width] images; the geometry of convolution and pooling.
struct Window {
  int64_t channels = 0, height = 0, width = 0;  // of the input
  int64_t kernel = 0, stride = 1, padding = 0;  // padding: zeros on each of the four sides

  int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
};

enum class Activation {
  kRelu,
  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh form of Hendrycks and Gimpel 2016.
  kGelu,
  kTanh,
};
inline constexpr float kGeluScale = 0.79788456080286536f;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

// Which elements a dropout drops: element e if UniformFloat(Philox(key, counter, e / 4)[e % 4]) < rate. The
// tensor's first element has the number first_element, so that a tensor may be cut in any way.
struct DropoutMask {
  float rate = 0;  // in [0, 1)
  uint64_t key = 0;
  uint64_t counter = 0;
  int64_t first_element = 0;
};

}  // namespace weir
