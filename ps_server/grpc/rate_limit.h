#pragma once

#include <algorithm>
#include <limits>

#include "absl/time/time.h"

namespace weir {

// A token bucket: `rate` events a second over a time, so that as many as `burst` may come at once. Not
// thread-safe.
class RateLimit {
 public:
  RateLimit(double rate, double burst) : rate_(rate), burst_(burst), left_(burst) {}
  // Any number of events.
  static RateLimit None() {
    constexpr double kAny = std::numeric_limits<double>::infinity();
    return {kAny, kAny};
  }

  // Whether an event may happen now. Take(): it happens then.
  bool Ready(absl::Time now) {
    if (last_ < now) {
      left_ = std::min(burst_, left_ + rate_ * absl::ToDoubleSeconds(now - last_));
      last_ = now;
    }
    return left_ >= 1;
  }
  bool Take(absl::Time now) {
    if (!Ready(now)) return false;
    left_ -= 1;
    return true;
  }

 private:
  const double rate_, burst_;
  double left_;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace weir
