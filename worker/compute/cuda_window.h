#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/compute/operations.h"

namespace weir::cuda {

// A Window in 32 bits, in which a GPU divides much faster than in 64, and the number of images for which all
// indexes fit into 32 bits. For .cu files.
struct Shape {
  explicit Shape(const Window& w)
      : channels(static_cast<int>(w.channels)),
        height(static_cast<int>(w.height)),
        width(static_cast<int>(w.width)),
        kernel(static_cast<int>(w.kernel)),
        stride(static_cast<int>(w.stride)),
        padding(static_cast<int>(w.padding)),
        out_height(static_cast<int>(w.out_height())),
        out_width(static_cast<int>(w.out_width())) {}

  int channels, height, width, kernel, stride, padding, out_height, out_width;
};

// The images of one launch; one image has fewer than 2^30 elements.
inline int64_t ImagesOfLaunch(const Window& w) {
  const int64_t elements = w.channels * std::max(w.height * w.width, w.out_height() * w.out_width());
  return std::max<int64_t>(1, (int64_t{1} << 30) / elements);
}

}  // namespace weir::cuda
