#include "common/system/clock.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/status/statusor.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock* const clock = new RealClock;
  return *clock;
}

AwakeClock::AwakeClock(const Clock& real) : real_(real), real_tick_(real.Now()), tick_(real_tick_) {}

absl::Time AwakeClock::At(absl::Time real) const { return tick_ + std::min(real - real_tick_, kMost); }

void AwakeClock::Tick() {
  MutexLock lock(mutex_);
  const absl::Time real = real_.Now();
  tick_ = At(real);
  real_tick_ = real;
}

absl::Time AwakeClock::Now() const {
  MutexLock lock(mutex_);
  return At(real_.Now());
}

const Clock& Clock::Awake() {
  // Neither the clock nor its thread ever ends: threads may ask for the time until the process does.
  static const Clock* const clock = []() -> const Clock* {
    auto* const made = new AwakeClock(Real());
    absl::StatusOr<std::thread> thread = MakeThread("tick", [made] {
      while (true) {
        made->Tick();
        std::this_thread::sleep_for(absl::ToChronoNanoseconds(AwakeClock::kTick));
      }
    });
    // A clock that nobody ticks would stand still, and no deadline would ever come.
    if (!thread.ok()) return &Real();
    thread->detach();
    return made;
  }();
  return *clock;
}

}  // namespace weir
