#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir {

// A doorbell in shared memory: one thread sleeps on it, and threads of any process on the machine wake that
// thread (a futex). It costs its ringers no system call while the thread is awake.
//
// The thread sleeps so that no work is overlooked:
//
//   const uint32_t armed = bell.Arm();
//   if (there is no work) bell.Sleep(armed, until);
//   bell.Disarm();
//
// A thread that leaves work writes the work first and rings then. A process that does not keep to this order
// can delay the sleeping thread until the end of its sleep, or wake it for nothing, and no more.
class alignas(64) Doorbell {
 public:
  using Steady = std::chrono::steady_clock;

  // Work that was left before this call is seen after it; work that is left later ends Sleep().
  uint32_t Arm();
  // Returns when the doorbell has rung since Arm(), at `until`, or sooner.
  void Sleep(uint32_t armed, Steady::time_point until);
  void Disarm() { asleep_.store(0, std::memory_order_relaxed); }

  void Ring();

 private:
  std::atomic<uint32_t> rung_{0};
  std::atomic<uint32_t> asleep_{0};
};

// The doorbells of a process, in a page that other processes map, too. The page has a fixed size, so that no
// process can take it from the others. Thread-safe.
class DoorbellPage {
 public:
  static constexpr uint32_t kBells = 64;

  // ResourceExhausted or another error of the system: there is no such memory.
  static absl::StatusOr<std::shared_ptr<DoorbellPage>> Create();
  // Maps another process's page. FailedPrecondition: `fd` is not a page of doorbells.
  static absl::StatusOr<std::shared_ptr<DoorbellPage>> Open(UniqueFd fd);
  ~DoorbellPage();
  DoorbellPage(const DoorbellPage&) = delete;
  DoorbellPage& operator=(const DoorbellPage&) = delete;

  // For handing over; only the maker keeps it.
  int fd() const { return fd_.get(); }
  // nullptr: there is no doorbell of this number.
  Doorbell* Bell(uint32_t number) const { return number < kBells ? bells_ + number : nullptr; }

 private:
  DoorbellPage(UniqueFd fd, Doorbell* bells) : fd_(std::move(fd)), bells_(bells) {}

  const UniqueFd fd_;
  Doorbell* const bells_;
};

// Something that other processes leave work for in shared memory, ringing the doorbell of the loop that
// serves it. Both methods run on the loop's thread, without locks.
class SharedWork {
 public:
  // Whether there is something to do.
  virtual bool Ready() const = 0;
  // Does some of it. Must not block. May remove this or other work from the loop.
  virtual void Serve() = 0;

 protected:
  ~SharedWork() = default;
};

}  // namespace weir
