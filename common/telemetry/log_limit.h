#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/bounded_by_key.h"

namespace weir {

// Limits log lines that come again and again to one in an interval. Not thread-safe.
class LogLimit {
 public:
  explicit LogLimit(absl::Duration interval) : interval_(interval) {}

  // Whether a line may be logged now. Then the next one may follow after the interval.
  bool Due(absl::Time now) {
    if (now < next_) {
      ++unsaid_;
      return false;
    }
    Begin(now);
    return true;
  }
  // The interval begins now.
  void Begin(absl::Time now) {
    next_ = now + interval_;
    left_out_ = std::exchange(unsaid_, 0);
  }
  // How many lines were left out before the interval.
  uint64_t left_out() const { return left_out_; }
  bool Over(absl::Time now) const { return now >= next_; }

 private:
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t unsaid_ = 0, left_out_ = 0;
};

// A LogLimit for each of many keys (BoundedByKey): while `most` keys have had a line in the last interval,
// all other keys share one limit. Not thread-safe.
class LogLimits {
 public:
  LogLimits(absl::Duration interval, size_t most) : limits_(LogLimit(interval), most, interval) {}

  // How many lines of the key were left out before this one; nullopt: this one is left out, too.
  std::optional<uint64_t> Due(const std::string& key, absl::Time now) {
    LogLimit& limit = limits_.Of(key, now, [now](const LogLimit& other) { return other.Over(now); });
    if (!limit.Due(now)) return std::nullopt;
    return limit.left_out();
  }

 private:
  BoundedByKey<LogLimit> limits_;
};

}  // namespace weir
