#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/system/clock.h"

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

}  // namespace weir
