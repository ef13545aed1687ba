#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace weir {

// Waits between tries: doubling from `first` up to `most`, each drawn from the upper half of its length so
// that peers which failed together do not come back together. Not thread-safe.
class Backoff {
 public:
  Backoff(std::chrono::milliseconds first, std::chrono::milliseconds most)
      : first_(first), most_(most), next_(first) {}

  std::chrono::milliseconds Next() {
    thread_local std::minstd_rand random{std::random_device{}()};
    std::uniform_int_distribution<std::chrono::milliseconds::rep> wait(next_.count() / 2, next_.count());
    next_ = std::min(next_ * 2, most_);
    return std::chrono::milliseconds(wait(random));
  }
  void Reset() { next_ = first_; }

 private:
  const std::chrono::milliseconds first_, most_;
  std::chrono::milliseconds next_;
};

}  // namespace weir
