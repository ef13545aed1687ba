#pragma once

#include "common/threads/mutex.h"

namespace weir {

// Blocks the threads that wait on it until it is opened.
class Gate {
 public:
  void Wait() {
    MutexLock lock(mutex_);
    while (!open_) changed_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ = false;
};

struct OpenAtEnd {
  Gate& gate;
  ~OpenAtEnd() { gate.Open(); }
};

}  // namespace weir
