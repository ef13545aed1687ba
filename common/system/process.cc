#include "common/system/process.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <utility>

#include "common/threads/thread.h"

namespace weir {
namespace {

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t NotIgnored(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : signals) {
    if (!IsIgnored(s)) sigaddset(&set, s);
  }
  return set;
}

// Where the waiter reads; -1: there is none.
std::atomic<int> waiter_pipe{-1};

// A signal handler, on any thread that has the signal unblocked.
void PassOn(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // If the pipe is full, thousands of signals wait already.
  if (const int fd = waiter_pipe; fd >= 0 && write(fd, &byte, 1) < 0) errno = 0;
  errno = saved;
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

size_t DescriptorLimit() {
  rlimit limit{};
  // Without a limit, the kernel has one of its own (fs.nr_open).
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<size_t>(limit.rlim_cur) : 1024;
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

const sigset_t& MaskAtStart() {
  static const sigset_t mask = [] {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return now;
  }();
  return mask;
}

sigset_t BlockSignals(std::initializer_list<int> signals) {
  MaskAtStart();
  const sigset_t set = NotIgnored(signals);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

absl::StatusOr<std::unique_ptr<SignalWaiter>> SignalWaiter::Start(std::initializer_list<int> signals,
                                                                  std::function<void(int)> handler) {
  std::unique_ptr<SignalWaiter> waiter(new SignalWaiter);
  waiter->stop_fd_ = eventfd(0, EFD_CLOEXEC);
  if (waiter->stop_fd_ < 0 || pipe2(waiter->pipe_, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot wait for signals");
  }
  const sigset_t taken = NotIgnored(signals);
  const auto run = [self = waiter.get(), taken, handler = std::move(handler)] {
    pthread_sigmask(SIG_UNBLOCK, &taken, nullptr);
    while (true) {
      pollfd fds[2] = {{self->stop_fd_, POLLIN, 0}, {self->pipe_[0], POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) continue;
      if (fds[0].revents != 0) return;
      unsigned char signal;
      if (read(self->pipe_[0], &signal, 1) == 1) handler(signal);
    }
  };
  // The thread takes no signal before it has a handler.
  waiter_pipe = waiter->pipe_[1];
  struct sigaction action = {};
  action.sa_handler = PassOn;
  action.sa_flags = SA_RESTART;
  for (int s : signals) {
    if (sigismember(&taken, s) == 1) sigaction(s, &action, nullptr);
  }
  absl::StatusOr<std::thread> thread = MakeThread("wait for signals", run);
  if (!thread.ok()) return thread.status();
  waiter->thread_ = *std::move(thread);
  return waiter;
}

void SignalWaiter::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (write(stop_fd_, &one, sizeof one) != sizeof one) return;
  thread_.join();
  // The pipe stays open: a signal that comes now may be about to write to it.
  waiter_pipe = -1;
  close(stop_fd_);
}

}  // namespace weir
