#pragma once

#include "absl/time/time.h"
#include "common/threads/mutex.h"

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
  // The monotonic clock without the time for which this process was stopped (AwakeClock). It
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

// A clock that runs while its process does: it leaves out the time for which the process was stopped
// (SIGSTOP, a frozen container, a debugger). While this clock runs, a peer could speak and this process could
// hear it. Clock::Awake() is this process's clock.
//
// A thread ticks as long as the process runs. Between two ticks at most kMost counts, so a stop counts at
// most that. Thread-safe.
class AwakeClock final : public Clock {
 public:
  static constexpr absl::Duration kTick = absl::Milliseconds(100), kMost = absl::Milliseconds(500);

  // `real` runs on while the process does not, and outlives this.
  explicit AwakeClock(const Clock& real);

  // Called about every kTick.
  void Tick();
  absl::Time Now() const override;

 private:
  absl::Time At(absl::Time real) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& real_;
  mutable Mutex mutex_;
  // The newest tick, on either clock.
  absl::Time real_tick_ ABSL_GUARDED_BY(mutex_), tick_ ABSL_GUARDED_BY(mutex_);
};

// A stretch of time that begins when this object is made. Not thread-safe.
class Stretch {
 public:
  // The clocks outlive this.
  explicit Stretch(const Clock& awake = Clock::Awake(), const Clock& real = Clock::Real())
      : awake_(&awake), real_(&real), from_(awake.Now()), real_from_(real.Now()) {}

  // How long the stretch is, in awake time.
  absl::Duration length() const { return awake_->Now() - from_; }
  // The process was stopped meanwhile, for longer than a busy machine may hold a process up.
  bool interrupted() const { return real_->Now() - real_from_ - length() > kHiccup; }

 private:
  static constexpr absl::Duration kHiccup = absl::Seconds(1);

  const Clock* awake_;
  const Clock* real_;
  absl::Time from_, real_from_;
};

}  // namespace weir
