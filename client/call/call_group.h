#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/sync/mutex.h"

namespace weir {

// A call in flight, as whoever wants to end it sees it.
class Call {
 public:
  virtual ~Call() = default;
  // Makes the call end soon, with `why` unless it is ending already. Does not wait for that and completes
  // nothing on this thread. Thread-safe.
  virtual void Cancel(const absl::Status& why) = 0;
};

// The calls in flight of one client, so that they can be ended together and waited for. Thread-safe.
class CallGroup {
 public:
  // Registers a call, before it starts. An error: the group is closed, the call must not start, and why.
  absl::Status Add(Call* call);
  // The last that a call does with anything outside itself.
  void Remove(Call* call);
  // Cancels all calls, and refuses new ones with `why`. The first Close() holds.
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

}  // namespace weir
