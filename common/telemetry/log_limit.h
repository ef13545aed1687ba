#pragma once

#include <cstdint>
#include <utility>

#include "absl/time/time.h"

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

 private:
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t unsaid_ = 0, left_out_ = 0;
};

}  // namespace weir
