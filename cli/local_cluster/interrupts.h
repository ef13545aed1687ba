#pragma once

#include <signal.h>

#include <optional>

namespace weir {

// Blocks SIGINT, SIGTERM and SIGHUP (the terminal is gone), so that a program can wait for them with poll. A
// signal that is ignored, such as SIGHUP under nohup, stays ignored. Make the object in main before any other
// thread, so that all threads inherit the blocked signals. There is one object at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable while a signal is pending; for poll.
  int fd() const { return fd_; }
  // Returns and removes the next pending signal; nullopt: there is none.
  std::optional<int> Next();

 private:
  sigset_t before_;
  int fd_;
};

}  // namespace weir
