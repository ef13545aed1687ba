#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/random.h"

namespace weir {

// n elements between guards, which detect writes beyond either end. The elements start `shift` elements after
// an aligned address.
class GuardedFloats {
 public:
  explicit GuardedFloats(size_t n, size_t shift = 3)
      : begin_(kGuard + shift), n_(n), all_(n + begin_ + kGuard) {
    Fill(all_.data(), all_.size());
  }
  float* data() { return all_.data() + begin_; }
  const float* data() const { return all_.data() + begin_; }
  size_t size() const { return n_; }
  void Set(const std::vector<float>& values) { std::copy(values.begin(), values.end(), data()); }
  bool SameBits(const GuardedFloats& other) const {
    return n_ == other.n_ && std::memcmp(data(), other.data(), n_ * sizeof(float)) == 0;
  }
  bool GuardsIntact() const {
    std::vector<float> guard(begin_ + kGuard);
    Fill(guard.data(), guard.size());
    return std::memcmp(all_.data(), guard.data(), begin_ * sizeof(float)) == 0 &&
           std::memcmp(data() + n_, guard.data(), kGuard * sizeof(float)) == 0;
  }

 private:
  static constexpr size_t kGuard = 64;  // more than the widest vector, unrolled
  static void Fill(float* out, size_t n) { std::memset(out, 0xa5, n * sizeof(float)); }

  size_t begin_, n_;
  std::vector<float> all_;
};

// A copy of floats at an address that is no multiple of 4, as in a received message.
class UnalignedFloats {
 public:
  UnalignedFloats(const std::vector<float>& values, size_t shift = 1)
      : shift_(shift), bytes_(values.size() * sizeof(float) + shift) {
    if (!values.empty()) std::memcpy(bytes_.data() + shift, values.data(), values.size() * sizeof(float));
  }
  const void* data() const { return bytes_.data() + shift_; }

 private:
  size_t shift_;
  std::vector<char> bytes_;
};

// Values that a gradient must not hold, and the largest that it may.
inline float FloatFromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline std::vector<float> NonFinites() {
  return {INFINITY, -INFINITY, NAN,
          FloatFromBits(0x7f800001),  // a signalling NaN
          FloatFromBits(0xffc00000)};
}

// Uniform in [-scale, scale).
inline std::vector<float> RandomFloats(uint64_t stream, size_t n, float scale) {
  RandomStream random(RandomKey(17, "optimizer tests"), stream);
  std::vector<float> out(n);
  for (float& x : out) x = (2 * UniformFloat(random.Next()) - 1) * scale;
  return out;
}

}  // namespace weir
