#pragma once

#include <functional>
#include <thread>

#include "common/threads/mutex.h"

namespace weir {

// Work that can stop in the midst of a call, as a thread does in a system call that does not return, while
// everything else continues. So the work has a thread of its own. But only one of the two threads, the work's
// and the caller's of Go(), runs at any time: the order of effects is the order of the calls.
class HangingWork {
 public:
  explicit HangingWork(std::function<void()> work);
  // The work must be over.
  ~HangingWork();

  // Lets the work begin, or continue, until it hangs or is over. True: it is over.
  bool Go();
  // Called by the work: blocks until the next Go().
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
