#include "common/system/process.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace weir {
namespace {

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : signals) sigaddset(&set, s);
  return set;
}

}  // namespace

void KeepFreedMemory() {
  // Larger blocks are mapped separately, each time anew; 32 MiB is the largest limit that glibc takes. Our
  // own large buffers are pooled.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // The heap grows by this much, so that it grows seldom.
  mallopt(M_TOP_PAD, 16 << 20);
}

void BlockSignals(std::initializer_list<int> signals) {
  const sigset_t set = SetOf(signals);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalWaiter::SignalWaiter(std::initializer_list<int> signals, std::function<void(int)> handler)
    : stop_fd_(eventfd(0, EFD_CLOEXEC)) {
  const sigset_t set = SetOf(signals);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  thread_ = std::thread([this, handler = std::move(handler)] {
    while (true) {
      pollfd fds[2] = {{stop_fd_, POLLIN, 0}, {signal_fd_, POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) continue;
      if (fds[0].revents != 0) return;
      signalfd_siginfo info;
      if (read(signal_fd_, &info, sizeof info) == sizeof info) handler(static_cast<int>(info.ssi_signo));
    }
  });
}

void SignalWaiter::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (write(stop_fd_, &one, sizeof one) != sizeof one) return;
  thread_.join();
  close(stop_fd_);
  close(signal_fd_);
}

}  // namespace weir
