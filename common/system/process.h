#pragma once

#include <functional>
#include <initializer_list>
#include <thread>

namespace weir {

// Makes malloc keep what was freed instead of giving it back to the system and faulting it in again (2 us per
// page): messages come and go all the time, in the same sizes. Called first in main.
void KeepFreedMemory();

// Blocks signals in this thread and the threads that it starts, so that a SignalWaiter takes them. Called
// before the first other thread starts.
void BlockSignals(std::initializer_list<int> signals);

// Runs `handler` on a thread of its own, not in a signal handler, each time one of the (blocked) signals
// comes.
class SignalWaiter {
 public:
  SignalWaiter(std::initializer_list<int> signals, std::function<void(int signal)> handler);
  ~SignalWaiter() { Stop(); }
  // No handler runs after this returns.
  void Stop();

 private:
  int stop_fd_, signal_fd_;
  std::thread thread_;
};

}  // namespace weir
