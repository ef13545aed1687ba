#pragma once

#include "absl/time/time.h"

namespace weir {

// The source of the time for the servers' logic, so that tests and simulations can set it themselves.
// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back. Its zero is arbitrary.
  virtual absl::Time Now() const = 0;

  // The machine's monotonic clock.
  static const Clock& Real();
  // The monotonic clock without the time for which this process was stopped (common/system/awake_clock.h). It
  // measures the waits after which a peer is given up. Its first use starts a thread.
  static const Clock& Awake();
};

// Stands still until it is told to move. Not thread-safe.
class ManualClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace weir
