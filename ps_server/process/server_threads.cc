#include "ps_server/process/server_threads.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace weir {

absl::Status Ticker::Start(std::chrono::milliseconds interval, std::function<void()> tick,
                           std::function<void()> check) {
  WEIR_ASSIGN_OR_RETURN(thread_, MakeThread("watch over deadlines",
                                            [this, interval, tick = std::move(tick),
                                             check = std::move(check)] { Run(interval, tick, check); }));
  return absl::OkStatus();
}

void Ticker::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Ticker::CheckIn(std::chrono::nanoseconds time) {
  const Clock::time_point at = Clock::now() + time;
  MutexLock lock(mutex_);
  if (check_at_ <= at) return;
  check_at_ = at;
  changed_.NotifyAll();
}

void Ticker::Run(std::chrono::milliseconds interval, const std::function<void()>& tick,
                 const std::function<void()>& check) {
  Clock::time_point next = Clock::now() + interval;
  while (true) {
    bool due;
    {
      MutexLock lock(mutex_);
      Clock::time_point now;
      while (!stopping_ && (now = Clock::now()) < std::min(next, check_at_)) {
        changed_.WaitUntil(mutex_, std::min(next, check_at_));
      }
      if (stopping_) return;
      if (check_at_ <= now) check_at_ = Clock::time_point::max();
      due = next <= now;
    }
    if (due) {
      next += interval;
      tick();
    } else {
      check();
    }
  }
}

}  // namespace weir
