#include "cli/local_cluster/interrupts.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "common/system/process.h"

namespace weir {

Interrupts::Interrupts() {
  pthread_sigmask(SIG_SETMASK, nullptr, &before_);
  const sigset_t mine = BlockSignals({SIGINT, SIGTERM, SIGHUP});
  fd_ = signalfd(-1, &mine, SFD_NONBLOCK | SFD_CLOEXEC);
}

Interrupts::~Interrupts() {
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> Interrupts::Next() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace weir
