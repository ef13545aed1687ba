#pragma once

#include <signal.h>

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"

namespace weir {

// Makes malloc keep what was freed instead of giving it back to the system and faulting it in again (2 us per
// page): messages come and go all the time, in the same sizes. Called first in main.
void KeepFreedMemory();

// How many descriptors this process may have open, and makes them as many as the system allows it. Shells
// give their programs few, for the sake of programs that use select().
size_t DescriptorLimit();
void RaiseDescriptorLimit();

// Blocks signals in this thread, the threads that it starts, and a program that it becomes: they wait until
// they are taken. Returns the signals that it has blocked. A signal that is ignored stays ignored: nohup
// starts a program with SIGHUP ignored, and a shell script starts its background programs with SIGINT
// ignored, so that the signal does not end the program.
sigset_t BlockSignals(std::initializer_list<int> signals);

// The signals that were blocked when this program was started, for the programs that it starts. First called
// before any signal is blocked; BlockSignals() calls it.
const sigset_t& MaskAtStart();

// Runs `handler` on a thread of its own, not in a signal handler, each time one of the signals comes, which
// BlockSignals() has blocked. It may be unblocked in other threads: libraries start some before main. A
// signal that is ignored stays so. One waiter at a time.
class SignalWaiter {
 public:
  // An error: the system gives no thread, or no descriptors. The signals stay blocked.
  static absl::StatusOr<std::unique_ptr<SignalWaiter>> Start(std::initializer_list<int> signals,
                                                             std::function<void(int signal)> handler);
  ~SignalWaiter() { Stop(); }
  // No handler runs after this returns; signals have no effect.
  void Stop();

 private:
  SignalWaiter() = default;

  int stop_fd_ = -1;
  int pipe_[2] = {-1, -1};  // signals' numbers, one byte each
  std::thread thread_;
};

}  // namespace weir
