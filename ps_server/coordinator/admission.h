#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/job_parts.h"
#include "ps_server/coordinator/members/part_shares.h"

namespace weir {

// Decides which process is a member of the job, and under which epoch. Takes out the members that leave, fall
// silent or are fenced, and tells shards and members.
//
// A worker is admitted in two rounds. Each round has an epoch of its own, which every shard acknowledges. In
// the first round each shard answers with the clock of its slowest live worker (the floor). In the second
// round the worker gets the highest floor as its start clock on all shards. So no shard ever sees a lead
// above the bound, and no worker starts before every shard knows it.
//
// Belongs to the coordinator's queue.
class Admission {
 public:
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // `job` outlives the object.
  explicit Admission(JobParts& job) : job_(job) {}

  // As Coordinator.
  void Join(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call);
  void Heartbeat(const v1::HeartbeatRequest& request, Done<v1::HeartbeatReply> done);
  void Leave(const v1::LeaveRequest& request, Done<v1::LeaveReply> done);
  void OnDisconnect(const v1::Caller& caller);
  void OnJoinCancelled(uint64_t instance, uint64_t call);

  // Takes out the members whose leases have ended. `stood_still`: as MemberTable::Tick().
  void Tick(bool stood_still);
  // Tells of the members that have left since the last call.
  void TellLeft();
  // Fails the job if there has been work, but no worker, for cluster.start_seconds. Call it from time to
  // time.
  void FailIfDeserted();

  // Admits the processes that wait, if the state of the job allows it.
  void MaybeAdmit();
  // Sends the membership, with a new epoch, to the shards.
  void Broadcast();
  // A shard has confirmed a membership.
  void OnConfirmed();
  // Tells the shards which workers are idle, once the shards have confirmed the previous membership: at the
  // end of a job many workers become idle at almost the same time.
  void TellIdle();
  // Numbers are reserved, as JobNumbers::Options says.
  void OnReserved(bool needed);
  // Removes all workers at once. Workers that were being admitted wait again.
  void FenceAll(const std::string& why);
  // If there is nothing left to do, answers the workers that wait to join.
  void TellNothingLeft();

 private:
  void OnAllConfirmed();
  // Sends the membership to the shards and to the members.
  void TellMembership();
  void Remove(uint32_t rank, const std::string& why);
  void RemoveReader(uint32_t id);
  // Answers the calls of a worker that is no longer a member, and takes back its work. `why`: for its
  // heartbeat.
  void TakeOut(uint32_t rank, MemberTable::Worker& member, const std::string& why = "");
  // If the connection of this rank's member broke and a new process of the rank waits, removes the member.
  void ReplaceIfGone(uint32_t rank);
  // sync: changes which worker computes how many of a step's parts, if that makes steps faster.
  void ShareParts();
  // Takes a worker's report on its training. If the losses diverge (train.divergence), the job fails.
  void HandleWorkerReport(const v1::Caller& caller, const v1::WorkerReport& report);
  // A worker left because its gradient is not finite.
  void HandleDivergence(uint32_t rank, const absl::Status& why);
  // The answer to a Join when nothing is left to do. Then the caller counts as told that the job is done.
  absl::Status NothingLeftFor(const v1::JoinRequest& request);

  JobParts& job_;
  PartShares shares_;
  // Changes of the membership that shards and members have not been told yet.
  bool due_ = false;   // a change waits for numbers
  bool left_ = false;  // members have left: told at the next tick
  bool idle_ = false;  // workers have become idle: told once the previous membership is confirmed
  // Since when there has been work but no worker.
  std::optional<absl::Time> deserted_;
};

}  // namespace weir
