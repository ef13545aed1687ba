#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "common/system/process.h"
#include "common/threads/mutex.h"

namespace weir {

// The end of a worker that the system asks to end, in the middle of its work. The worker leaves the job, so
// that others get its work at once and not only when its lease is over. Thread-safe.
class Preemption {
 public:
  // This process's member of the job, for as long as this object lives. One at a time.
  class Member {
   public:
    Member(Preemption* preemption, Client* client);
    // While the process leaves and exits, this waits: another exit code would say that something went wrong.
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

   private:
    Preemption* const preemption_;
  };

  // From now on each of these signals ends the process with kExitDrained, after 3 seconds at most.
  // Requires: the process has no other way to take these signals, and starts threads of its own later.
  // Errors: the system gives no thread, or no descriptors.
  static absl::StatusOr<std::unique_ptr<Preemption>> Start(std::initializer_list<int> signals);

 private:
  Preemption() = default;
  // Leaves the job with this reason, if the process is in a job, and exits.
  [[noreturn]] void LeaveAndExit(const std::string& why);

  Mutex mutex_;
  Client* client_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<SignalWaiter> signals_;
};

}  // namespace weir
