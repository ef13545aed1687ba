#pragma once

#include <signal.h>

#include <optional>

namespace weir {

// Turns SIGINT, SIGTERM and SIGHUP (the terminal is gone) into something to wait for, but for those that are
// ignored, as nohup has SIGHUP. Made in main before any other thread, so that all threads inherit that the
// signals are blocked; one object at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable while a signal is pending; for poll.
  int fd() const { return fd_; }
  // The next pending signal.
  std::optional<int> Next();

 private:
  sigset_t before_;
  int fd_;
};

}  // namespace weir
