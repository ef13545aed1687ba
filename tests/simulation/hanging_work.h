#pragma once

#include <functional>
#include <thread>

#include "common/sync/mutex.h"

namespace weir {

// Work that can stand still in the midst of a call, as a thread does in a system call that does not return,
// while everybody else goes on. So it has a thread of its own; but only one of the two runs at any time, it
// or whoever called Go(), so that what it does is in the order of the calls.
class HangingWork {
 public:
  explicit HangingWork(std::function<void()> work);
  // It is over by then.
  ~HangingWork();

  // Lets it begin, or go on, until it hangs or is over. True: it is over.
  bool Go();
  // By the work: stands still until the next Go().
  void Hang();

 private:
  enum class Turn { kCaller, kWork };
  void Pass(Turn to) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  Turn turn_ ABSL_GUARDED_BY(mutex_) = Turn::kCaller;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weir
