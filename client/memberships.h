#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/preemption.h"
#include "common/system/clock.h"

namespace weir {

// Joins the job and works in it until `work` is done. If this process is fenced meanwhile (Aborted), it joins
// again with a fresh client, as long as there is progress (Rejoining). It is fenced if the job went back to a
// checkpoint because a server was lost, ps:0 is a different process from before, or the lease ended. `work`
// runs on the calling thread, and starts from nothing each time.
//
// Returns OK also if there is nothing left to do. Errors are those of the join or of `work`. If a server was
// lost and ps:0 is gone, too, the error of leaving is added. After too many memberships without progress,
// returns the error of the last fence.
//
// `preemption`: may be null; hands the work back if the system asks this process to end.
absl::Status WorkUntilDone(ClientOptions options, const ModelSpec& model,
                           const std::function<absl::Status(Client*)>& work,
                           Preemption* preemption = nullptr);

// Like the function above, with other ways to join and to tell the time. `start_wait`:
// cluster.start_seconds.
using JoinJobFunction = std::function<absl::StatusOr<std::unique_ptr<Client>>(const ClientOptions&)>;
absl::Status WorkUntilDone(ClientOptions options, absl::Duration start_wait, const JoinJobFunction& join,
                           const std::function<absl::Status(Client*)>& work, Preemption* preemption = nullptr,
                           const Clock& clock = Clock::Awake());

// Decides whether a process that was fenced joins again: as long as there is progress, its own
// (Client::progressed()) or, as the clock at which it joins shows, the job's. After kMostFruitless
// memberships in a row without progress the process gives up, if these memberships took `start_wait`
// (cluster.start_seconds). So the job's servers may come back and be lost again for that time.
//
// Not thread-safe.
class Rejoining {
 public:
  static constexpr int kMostFruitless = 10;

  explicit Rejoining(absl::Duration start_wait, const Clock& clock = Clock::Awake())
      : start_wait_(start_wait), clock_(clock), progressed_(clock.Now()) {}

  // The client was fenced with this error. Returns OK if the process joins again; otherwise the error with
  // the reason why this fence is the last.
  absl::Status OnFenced(const absl::Status& error, const Client& client);

 private:
  const absl::Duration start_wait_;
  const Clock& clock_;
  absl::Time progressed_;
  int fruitless_ = 0;
  // Where a membership began.
  uint64_t furthest_ = 0;
};

}  // namespace weir
