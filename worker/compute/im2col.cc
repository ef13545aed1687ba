#include "worker/compute/im2col.h"

#include <algorithm>
#include <cstring>

namespace weir {
namespace {

// The output positions [first, end) of `outputs` that read inside the image, along one axis for one tap of
// the kernel.
struct Range {
  int64_t first, end;
};
Range Inside(const Window& w, int64_t tap, int64_t inputs, int64_t outputs) {
  // 0 <= output * stride + tap - padding < inputs
  const int64_t shift = w.padding - tap;
  const int64_t first = shift <= 0 ? 0 : (shift + w.stride - 1) / w.stride;
  const int64_t end = inputs + shift <= 0 ? 0 : (inputs + shift - 1) / w.stride + 1;
  return {std::min(first, outputs), std::min(end, outputs)};
}

// Calls act(position in the image, position in the column matrix, n) for each row of n > 0 outputs that reads
// the image. The outputs lie side by side; the values that they read lie `stride` apart.
template <typename Act>
void ForEachRow(const Window w, const Act& act) {
  const int64_t out_height = w.out_height(), out_width = w.out_width();
  int64_t column = 0;
  for (int64_t c = 0; c < w.channels; ++c) {
    for (int64_t ky = 0; ky < w.kernel; ++ky) {
      const Range rows = Inside(w, ky, w.height, out_height);
      for (int64_t kx = 0; kx < w.kernel; ++kx, column += out_height * out_width) {
        const Range columns = Inside(w, kx, w.width, out_width);
        const int64_t n = columns.end - columns.first;
        if (n <= 0) continue;
        const int64_t left = columns.first * w.stride + kx - w.padding;
        for (int64_t y = rows.first; y < rows.end; ++y) {
          act((c * w.height + y * w.stride + ky - w.padding) * w.width + left,
              column + y * out_width + columns.first, n);
        }
      }
    }
  }
}

// Rows of images are short: copies of a known size, which need no call, do better than one memcpy.
inline void CopyRow(int64_t n, const float* from, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) std::memcpy(to + i, from + i, 8 * sizeof(float));
  for (; i < n; ++i) to[i] = from[i];
}

inline void AddRow(int64_t n, const float* __restrict from, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

}  // namespace

void Im2Col(const Window& w, const float* image, float* column) {
  if (w.padding > 0) {
    std::fill_n(column, w.channels * w.kernel * w.kernel * w.out_height() * w.out_width(), 0.0f);
  }
  if (w.stride == 1) {
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) { CopyRow(n, image + x, column + y); });
  } else {
    const int64_t stride = w.stride;
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) {
      for (int64_t i = 0; i < n; ++i) column[y + i] = image[x + i * stride];
    });
  }
}

void Col2Im(const Window& w, const float* column, float* image) {
  std::fill_n(image, w.channels * w.height * w.width, 0.0f);
  if (w.stride == 1) {
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) { AddRow(n, column + y, image + x); });
  } else {
    const int64_t stride = w.stride;
    ForEachRow(w, [=](int64_t x, int64_t y, int64_t n) {
      for (int64_t i = 0; i < n; ++i) image[x + i * stride] += column[y + i];
    });
  }
}

}  // namespace weir
