#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>

namespace weir {

// Waits between tries. They double from `first` up to `most`, and each is drawn from the upper half of its
// length, so that peers that failed together do not come back together. Not thread-safe.
class Backoff {
 public:
  // Uniform in 32 bits.
  using Random = std::function<uint32_t()>;

  Backoff(std::chrono::milliseconds first, std::chrono::milliseconds most, Random random = AnyRandom)
      : first_(first), most_(most), random_(std::move(random)), next_(first) {}

  std::chrono::milliseconds Next() {
    const std::chrono::milliseconds least = next_ / 2, span = next_ - least;
    next_ = std::min(next_ * 2, most_);
    return least + std::chrono::milliseconds(random_() % (span.count() + 1));
  }
  void Reset() { next_ = first_; }

  // Thread-safe: each thread has a generator of its own.
  static uint32_t AnyRandom() {
    thread_local std::mt19937 random{std::random_device{}()};
    return static_cast<uint32_t>(random());
  }

 private:
  const std::chrono::milliseconds first_, most_;
  const Random random_;
  std::chrono::milliseconds next_;
};

}  // namespace weir
