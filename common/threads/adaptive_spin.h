#pragma once

#include <algorithm>
#include <chrono>

namespace weir {

// How long a thread looks for work before it sleeps: as long as it paid lately. Waits that a longer look
// would have covered lengthen the next ones, waits that are far longer end the looking, as in the halt
// polling of Linux's KVM (https://docs.kernel.org/virt/kvm/halt-polling.html). A core that others want is
// left to them.
//
// Used by one thread at a time.
class AdaptiveSpin {
 public:
  using Duration = std::chrono::nanoseconds;

  // To sleep and be woken costs 5 to 50 us; a longer look cannot pay.
  static constexpr Duration kLeast = std::chrono::microseconds(5), kMost = std::chrono::microseconds(50);
  // A look that gave the core to another thread came back after at least this.
  static constexpr Duration kCoreWanted = std::chrono::microseconds(20);
  // So many waits are without looking then; twice as many each time, until as many looks as kCalm in a row
  // have found their work.
  static constexpr int kSkipLeast = 16, kSkipMost = 4096, kCalm = 64;

  // For the wait that begins.
  Duration budget() const { return skip_ > 0 ? Duration(0) : budget_; }
  // A wait ended after this time, the sleep included.
  void OnWaited(Duration waited) {
    if (skip_ > 0) {
      --skip_;
    } else if (waited <= budget_) {
      if (++found_ >= kCalm) next_skip_ = kSkipLeast;
    } else if (waited > kMost) {
      budget_ = Duration(0);
    } else {
      budget_ = std::clamp(2 * budget_, kLeast, kMost);
    }
  }
  void OnCoreWanted() {
    skip_ = next_skip_;
    next_skip_ = std::min(2 * next_skip_, kSkipMost);
    found_ = 0;
  }

 private:
  Duration budget_ = Duration(0);
  int skip_ = 0, next_skip_ = kSkipLeast, found_ = 0;
};

}  // namespace weir
