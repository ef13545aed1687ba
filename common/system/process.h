#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <thread>

namespace weir {

// Makes malloc keep what was freed instead of giving it back to the system and faulting it in again (2 us per
// page): messages come and go all the time, in the same sizes. Called first in main.
void KeepFreedMemory();

// How many descriptors this process may have open, and makes them as many as the system allows it. Shells
// give their programs few, for the sake of programs that use select().
size_t DescriptorLimit();
void RaiseDescriptorLimit();

// Blocks signals in this thread, the threads that it starts, and a program that it becomes: they wait until a
// SignalWaiter takes them.
void BlockSignals(std::initializer_list<int> signals);

// Runs `handler` on a thread of its own, not in a signal handler, each time one of the signals comes, which
// BlockSignals() has blocked. It may be unblocked in other threads: libraries start some before main. One
// waiter at a time.
class SignalWaiter {
 public:
  SignalWaiter(std::initializer_list<int> signals, std::function<void(int signal)> handler);
  ~SignalWaiter() { Stop(); }
  // No handler runs after this returns; signals have no effect.
  void Stop();

 private:
  int stop_fd_;
  int pipe_[2];  // signals' numbers, one byte each
  std::thread thread_;
};

}  // namespace weir
