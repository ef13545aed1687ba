#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "common/threads/mutex.h"

// Limits, retries and cancellation of calls.
namespace weir {

// A call in flight, as seen by code that may cancel it.
class Call {
 public:
  virtual ~Call() = default;
  // Makes the call end soon, with `why` unless the call is ending already. Returns before that, and completes
  // nothing on this thread. Thread-safe.
  virtual void Cancel(const absl::Status& why) = 0;
};

// The calls in flight of one client, so that they can be ended together and waited for. Thread-safe.
class CallGroup {
 public:
  // Registers a call before it starts. Returns an error if the group is closed; then the call must not start.
  absl::Status Add(Call* call);
  // A call's last action: from then on it uses nothing outside itself.
  void Remove(Call* call);
  // Cancels all calls and refuses new ones with `why`. Only the first Close() has an effect.
  void Close(const absl::Status& why);
  // Waits until every call has been removed.
  void WaitUntilEmpty();

 private:
  Mutex mutex_;
  CondVar empty_;
  // In the order in which they were added.
  std::vector<Call*> calls_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

struct CallLimits {
  // The longest time that a call may take, retries included.
  std::chrono::nanoseconds total{};
  // How long after the first failure to reach its peer a call gives the peer up.
  std::chrono::nanoseconds unreachable{};
};

// Limits of an attempt to connect, where each try makes a connection of its own: the limit of the first
// attempt, which doubles with each further one, and the longest.
constexpr std::chrono::seconds kFirstAttempt{1}, kLongestAttempt{16};

// Waits between tries. They double from `first` up to `most`, and each is drawn from the upper half of its
// length, so that peers that failed together do not come back together. Not thread-safe.
class Backoff {
 public:
  // Uniform in 32 bits.
  using Random = std::function<uint32_t()>;

  Backoff(std::chrono::milliseconds first, std::chrono::milliseconds most, Random random = AnyRandom)
      : first_(first), most_(most), random_(std::move(random)), next_(first) {}

  std::chrono::milliseconds Next() {
    const std::chrono::milliseconds least = next_ / 2, span = next_ - least;
    next_ = std::min(next_ * 2, most_);
    return least + std::chrono::milliseconds(random_() % (span.count() + 1));
  }
  void Reset() { next_ = first_; }

  // Thread-safe: each thread has a generator of its own.
  static uint32_t AnyRandom() {
    thread_local std::mt19937 random{std::random_device{}()};
    return static_cast<uint32_t>(random());
  }

 private:
  const std::chrono::milliseconds first_, most_;
  const Random random_;
  std::chrono::milliseconds next_;
};

// Decides how a call continues when one of its tries has failed. UNAVAILABLE and CANCELLED (by the peer) lead
// to another try after a jittered wait, until the call's limits are reached; any other error ends the call.
// Time for which this process was stopped does not count, and a try during which the process was stopped does
// not end the call for being late. Not thread-safe.
class CallRetry {
 public:
  // `what` and `peer` are for messages: "the pull at clock 7", "ps:1 at 10.0.0.1:2222". The call starts now.
  // The clocks (common/system/clock.h) outlive this object.
  CallRetry(std::string what, std::string peer, const CallLimits& limits, const Clock& awake = Clock::Awake(),
            const Clock& real = Clock::Real(), Backoff::Random random = Backoff::AnyRandom)
      : what_(std::move(what)),
        peer_(std::move(peer)),
        limits_(limits),
        awake_(awake),
        real_(real),
        deadline_(awake.Now() + absl::FromChrono(limits.total)),
        backoff_(std::chrono::milliseconds(50), std::chrono::milliseconds(1000), std::move(random)) {}

  const std::string& what() const { return what_; }
  const std::string& peer() const { return peer_; }
  // The time until the call's deadline. An estimate: a stop of this process that shows later moves the
  // deadline.
  std::chrono::nanoseconds left() const { return absl::ToChronoNanoseconds(deadline_ - awake_.Now()); }
  // How long the call may take in all.
  double seconds() const { return std::chrono::duration<double>(limits_.total).count(); }

  void TryStarts() { try_.emplace(awake_, real_); }

  struct Verdict {
    // The error that ends the call. OK: another try starts after `wait`.
    absl::Status error;
    std::chrono::nanoseconds wait{};
  };
  // Called when a try has failed.
  Verdict Judge(const absl::Status& failure);
  // The error of a call that its deadline ends.
  absl::Status Late() const;

 private:
  const std::string what_, peer_;
  const CallLimits limits_;
  const Clock& awake_;
  const Clock& real_;
  // Awake times: the call's deadline, and since when the peer could not be reached.
  const absl::Time deadline_;
  std::optional<absl::Time> unreachable_since_;
  // The newest try.
  std::optional<Stretch> try_;
  Backoff backoff_;
};

}  // namespace weir
