#include "common/system/awake_clock.h"

#include <algorithm>
#include <thread>

namespace weir {

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
  static AwakeClock* const clock = [] {
    auto* const made = new AwakeClock(Real());
    std::thread([made] {
      while (true) {
        made->Tick();
        std::this_thread::sleep_for(absl::ToChronoNanoseconds(AwakeClock::kTick));
      }
    }).detach();
    return made;
  }();
  return *clock;
}

}  // namespace weir
