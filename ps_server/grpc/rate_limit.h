#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <string>

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

// The same for each of many keys, which strangers may choose: while `most` keys have had events lately, all
// other keys share one limit. Not thread-safe.
class RateLimits {
 public:
  RateLimits(double rate, double burst, size_t most)
      : rate_(rate), burst_(burst), most_(most), others_(rate, burst) {}

  bool Take(const std::string& key, absl::Time now) { return Of(key, now).Take(now); }

 private:
  RateLimit& Of(const std::string& key, absl::Time now) {
    if (const auto it = limits_.find(key); it != limits_.end()) return it->second;
    if (limits_.size() >= most_ && now >= next_sweep_) {
      next_sweep_ = now + absl::Seconds(1);
      for (auto it = limits_.begin(); it != limits_.end();) {
        it = it->second.Full(now) ? limits_.erase(it) : std::next(it);
      }
    }
    return limits_.size() < most_ ? limits_.try_emplace(key, rate_, burst_).first->second : others_;
  }

  const double rate_, burst_;
  const size_t most_;
  std::map<std::string, RateLimit> limits_;
  RateLimit others_;
  absl::Time next_sweep_ = absl::InfinitePast();
};

}  // namespace weir
