#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace weir {

// Philox4x32-10, a counter-based generator (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
// 2011). It is a pure function of (key, counter). So any element of a random tensor, permutation or dropout
// mask can be made anywhere, in any order, with the same bits.
std::array<uint32_t, 4> Philox(uint64_t key, uint64_t counter_high, uint64_t counter_low);

// A key for `purpose` (a tensor's name, "shuffle", ...) under the job's seed. Stable across builds and
// machines.
uint64_t RandomKey(uint64_t seed, const std::string& purpose);

// A float that is uniform in [0, 1), with 24 bits, from 32 random bits.
inline float UniformFloat(uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }

// Two independent normal values of deviation 1 from 64 random bits (Box and Muller 1958): sqrt(-2 ln u1)
// times cos(2 pi u2) and sin(2 pi u2). u1 = (bits1 + 1) / 2^32 and u2 = bits2 / 2^32, in double. Every CPU
// gives the same bits.
std::array<double, 2> TwoNormals(uint32_t bits1, uint32_t bits2);

// A stream of numbers for sequential uses, such as a shuffle. Copyable; not thread-safe.
class RandomStream {
 public:
  RandomStream(uint64_t key, uint64_t stream) : key_(key), stream_(stream) {}
  uint32_t Next();
  // Uniform in [0, bound), without bias. bound > 0.
  uint32_t NextBelow(uint32_t bound);

 private:
  uint64_t key_, stream_;
  uint64_t counter_ = 0;
  std::array<uint32_t, 4> buffer_{};
  int used_ = 4;
};

}  // namespace weir
