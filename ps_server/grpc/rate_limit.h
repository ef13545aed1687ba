#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include "absl/time/time.h"
#include "common/base/bounded.h"

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
  // As many events may come at once as ever.
  bool Full(absl::Time now) {
    Ready(now);
    return left_ >= burst_;
  }

 private:
  const double rate_, burst_;
  double left_;
  absl::Time last_ = absl::InfinitePast();
};

// A RateLimit for each of many keys (BoundedByKey): while `most` keys have had events lately, all other keys
// share one limit. Not thread-safe.
class RateLimits {
 public:
  RateLimits(double rate, double burst, size_t most)
      : limits_(RateLimit(rate, burst), most, absl::Seconds(1)) {}

  bool Take(const std::string& key, absl::Time now) {
    return limits_.Of(key, now, [now](RateLimit& other) { return other.Full(now); }).Take(now);
  }

 private:
  BoundedByKey<RateLimit> limits_;
};

}  // namespace weir
