#include "common/base/random.h"

#include <cmath>

#include "common/base/portable_math.h"

namespace weir {

std::array<uint32_t, 4> Philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  constexpr uint32_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57, kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kM0} * c0, p1 = uint64_t{kM1} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += kW0;
    k1 += kW1;
  }
  return {c0, c1, c2, c3};
}

uint64_t RandomKey(uint64_t seed, const std::string& purpose) {
  // FNV-1a over the purpose, then one round of Philox to mix in the seed.
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : purpose) hash = (hash ^ c) * 0x100000001b3;
  const auto words = Philox(seed, hash, purpose.size());
  return uint64_t{words[1]} << 32 | words[0];
}

std::array<double, 2> TwoNormals(uint32_t bits1, uint32_t bits2) {
  const double radius = std::sqrt(-2 * Ln((static_cast<double>(bits1) + 1) * 0x1p-32));
  const CirclePoint point = OnCircle(static_cast<double>(bits2) * 0x1p-32);
  return {radius * point.cos, radius * point.sin};
}

uint32_t RandomStream::Next() {
  if (used_ == 4) {
    buffer_ = Philox(key_, stream_, counter_++);
    used_ = 0;
  }
  return buffer_[used_++];
}

uint32_t RandomStream::NextBelow(uint32_t bound) {
  // Lemire, "Fast Random Integer Generation in an Interval", 2019.
  uint64_t product = uint64_t{Next()} * bound;
  if (static_cast<uint32_t>(product) < bound) {
    const uint32_t threshold = (0u - bound) % bound;
    while (static_cast<uint32_t>(product) < threshold) product = uint64_t{Next()} * bound;
  }
  return static_cast<uint32_t>(product >> 32);
}

}  // namespace weir
