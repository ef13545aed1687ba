#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/system/clock.h"
#include "common/threads/mutex.h"

namespace weir {

// How one membership of this process ended.
struct MembershipEnd {
  absl::Status status;
  // The membership did something that the job keeps, unless the job goes back to a checkpoint: a push that
  // was acknowledged, or an evaluation.
  bool progressed = false;
};

using JoinJobFunction = std::function<absl::StatusOr<std::unique_ptr<Client>>(const ClientOptions&)>;

// Joins the job and works in it until `work` is done. If this process is fenced meanwhile (Aborted), it joins
// again with a fresh client, as long as there is progress. It is fenced if the job went back to a checkpoint
// because a server was lost, ps:0 is a different process from before, or the lease ended. Progress is this
// process's own or, as the clock at which it joins shows, the job's. After kFruitlessMemberships memberships
// in a row without progress, the function gives up, if these memberships took `start_wait`
// (cluster.start_seconds). So the job's servers may come back and be lost again for that time. `work` runs on
// the calling thread, and starts from nothing each time.
//
// Returns OK also if there is nothing left to do. Errors are those of the join or of `work`. If a server was
// lost and ps:0 is gone, too, the error of leaving is added. After too many memberships without progress,
// returns the error of the last fence.
inline constexpr int kFruitlessMemberships = 10;
absl::Status WorkUntilDone(ClientOptions options, absl::Duration start_wait, const JoinJobFunction& join,
                           const std::function<MembershipEnd(Client*)>& work,
                           const Clock& clock = Clock::Awake());

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

  // Leaves the job with this reason, if the process is in a job, and exits. Takes a few seconds at most.
  [[noreturn]] void LeaveAndExit(const std::string& why, int exit_code);

 private:
  Mutex mutex_;
  Client* client_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace weir
