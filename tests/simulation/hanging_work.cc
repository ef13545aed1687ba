#include "tests/simulation/hanging_work.h"

#include <utility>

namespace weir {

HangingWork::HangingWork(std::function<void()> work)
    : thread_([this, work = std::move(work)]() mutable {
        {
          MutexLock lock(mutex_);
          while (turn_ != Turn::kWork) changed_.Wait(mutex_);
        }
        // Destroys what the work holds while it is the work's turn.
        std::exchange(work, nullptr)();
        MutexLock lock(mutex_);
        over_ = true;
        turn_ = Turn::kCaller;
        changed_.NotifyAll();
      }) {}

HangingWork::~HangingWork() { thread_.join(); }

bool HangingWork::Go() {
  Pass(Turn::kWork);
  MutexLock lock(mutex_);
  return over_;
}

void HangingWork::Hang() { Pass(Turn::kCaller); }

// Returns when the other's turn is over.
void HangingWork::Pass(Turn to) {
  MutexLock lock(mutex_);
  turn_ = to;
  changed_.NotifyAll();
  while (turn_ == to) changed_.Wait(mutex_);
}

}  // namespace weir
