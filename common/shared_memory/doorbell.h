#pragma once

#include <algorithm>
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

// How long a thread looks for work before it sleeps: as long as it paid lately. Waits that a longer look
// would have covered lengthen the next ones, waits that are far longer end the looking, as in the halt
// polling of Linux's KVM (https://docs.kernel.org/virt/kvm/halt-polling.html). A core that others want is
// left to them.
//
// Used by one thread at a time.
class AdaptiveSpin {
 public:
  using Duration = std::chrono::nanoseconds;

  // To sleep and be woken costs 5 to 50 us; a longer look cannot pay.
  static constexpr Duration kLeast = std::chrono::microseconds(5), kMost = std::chrono::microseconds(50);
  // A look that gave the core to another thread came back after at least this.
  static constexpr Duration kCoreWanted = std::chrono::microseconds(20);
  // So many waits are without looking then; twice as many each time, until as many looks as kCalm in a row
  // have found their work.
  static constexpr int kSkipLeast = 16, kSkipMost = 4096, kCalm = 64;

  // For the wait that begins.
  Duration budget() const { return skip_ > 0 ? Duration(0) : budget_; }
  // A wait ended after this time, the sleep included.
  void OnWaited(Duration waited) {
    if (skip_ > 0) {
      --skip_;
    } else if (waited <= budget_) {
      if (++found_ >= kCalm) next_skip_ = kSkipLeast;
    } else if (waited > kMost) {
      budget_ = Duration(0);
    } else {
      budget_ = std::clamp(2 * budget_, kLeast, kMost);
    }
  }
  void OnCoreWanted() {
    skip_ = next_skip_;
    next_skip_ = std::min(2 * next_skip_, kSkipMost);
    found_ = 0;
  }

 private:
  Duration budget_ = Duration(0);
  int skip_ = 0, next_skip_ = kSkipLeast, found_ = 0;
};

}  // namespace weir
