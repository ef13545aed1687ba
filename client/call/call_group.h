#pragma once

#include <chrono>
#include <vector>

#include "absl/status/status.h"
#include "common/threads/mutex.h"

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

}  // namespace weir
