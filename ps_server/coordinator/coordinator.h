#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/mode_traits.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"
#include "common/threads/serial_queue.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/checkpoints/job_numbers.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/coordinator/evaluation/divergence_watch.h"
#include "ps_server/coordinator/evaluation/job_evaluations.h"
#include "ps_server/coordinator/job/job_context.h"
#include "ps_server/coordinator/job_ending.h"
#include "ps_server/coordinator/job_status.h"
#include "ps_server/coordinator/members/initial_upload.h"
#include "ps_server/coordinator/members/job_declaration.h"
#include "ps_server/coordinator/members/member_table.h"
#include "ps_server/coordinator/members/version_pins.h"
#include "ps_server/coordinator/progress/job_meter.h"
#include "ps_server/coordinator/progress/job_progress.h"
#include "ps_server/coordinator/shards/install_source.h"
#include "ps_server/coordinator/shards/shard_fleet.h"
#include "ps_server/coordinator/shards/shard_link.h"

namespace weir {

// Takes the decisions that a job must take once: who is a member under which epoch, when a sync step commits,
// which worker gets which batches, and when the job is done or has failed. Off the data path. Knows nothing
// of gRPC.
//
// A SerialQueue puts all calls and events in one order; a call that has to wait is parked. Messages to the
// shards go out in the order of the decisions, so every shard sees the same sequence of epochs, commits and
// pins. Thread-safe.
//
// A worker is admitted in two rounds. Each round has an epoch of its own, which every shard acknowledges. In
// the first round each shard answers with the clock of its slowest live worker (the floor). In the second
// round the worker gets the highest floor as its start clock on all shards. So no shard ever sees a lead
// above the bound, and no worker starts before every shard knows it.
//
// With a store the job outlives its servers. If the link of a shard breaks or falls silent, the shard is
// attached again. In bounded and async the other shards continue meanwhile. The shard continues with what it
// holds or, if it comes back as a new incarnation, is restored alone. In sync the whole job goes back: all
// members are removed at once, all shards are installed anew from the newest checkpoint, and the members join
// again. If the coordinator is started again, it knows only the store's numbers and newest checkpoint. It
// learns the rest from Join and Attached. No lease can end early then, because the new coordinator has no
// members yet.
//
// Where a worker uploads the initial values (InitialUpload), members are admitted before the values are
// there, and the job begins once the values are on all shards and saved. If a shard is lost before that, all
// shards go back to the beginning.
//
// If a shard comes back at a new address (ShardFleet), the coordinator tells the members before it installs
// the shard. Otherwise a process that only seemed to be gone could still answer the members at the old
// address.
class Coordinator {
 public:
  struct Options {
    v1::JobConfig config;
    // The identity of a job without a store; otherwise the store knows it.
    v1::JobIdentity job;
    // The number of workers that train, from the config or the cluster spec. At least 1.
    uint32_t workers = 1;
    // How messages name the workers, by rank: "worker:1 at 10.0.0.1:2222". May be short or empty.
    std::vector<std::string> worker_names;
    // The addresses of all shards; the first is this process's. If the list has only that one, the
    // coordinator learns the addresses from the first worker that joins.
    std::vector<std::string> shard_addresses;
    // If the job has no checkpoint of its own, it begins with the weights of the checkpoint in
    // checkpoint.init_from, which has this step. Absent: it begins with version 0.
    std::optional<uint64_t> init_from;
    // Called when a shard has found files of the checkpoint of this step in checkpoint.init_from damaged or
    // missing. Finds the step of the newest whole checkpoint before it, and calls `found`, on any thread.
    // Errors: as JobStore::PassOver(). Null: there is no earlier checkpoint.
    std::function<void(uint64_t step, std::function<void(absl::StatusOr<uint64_t>)> found)> init_from_before;
    // The memory that a server on this machine may use; 0: unknown. A model that cannot fit is refused.
    uint64_t memory_bytes = 0;
    // Whether the job's TCP connections have TLS, for the status.
    bool tls = false;
    // Outlives the coordinator.
    const Clock* clock = &Clock::Real();
    ShardLinkFactory open_link;
    // Called once, when the job is over. `failure` is OK if the job is done. Must not block.
    std::function<void(const v1::ClusterStatus& status, const absl::Status& failure)> on_end;
  };

  // Without a store nothing is saved, and a lost server ends the job. If the job cannot continue from the
  // store's newest checkpoint (CanGoOn()), it fails at once.
  explicit Coordinator(Options options, std::unique_ptr<JobStore> store = nullptr);
  // Answers all parked calls with an error.
  ~Coordinator();

  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // `call` tells this call from its repeats, for OnJoinCancelled().
  void Join(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call = 0);
  void Heartbeat(v1::HeartbeatRequest request, Done<v1::HeartbeatReply> done);
  void Leave(v1::LeaveRequest request, Done<v1::LeaveReply> done);
  void NextRange(v1::NextRangeRequest request, Done<v1::NextRangeReply> done);
  void Pin(v1::PinRequest request, Done<v1::PinReply> done);
  void Unpin(v1::UnpinRequest request, Done<v1::UnpinReply> done);
  void Report(v1::ReportRequest request, Done<v1::ReportReply> done);
  void Checkpoint(v1::CheckpointRequest request, Done<v1::CheckpointReply> done);
  void Announce(v1::AnnounceRequest request, Done<v1::AnnounceReply> done);
  void Status(Done<v1::ClusterStatus> done, bool with_loss_curve = false);

  // A member's connection broke: the connection of one of its calls, or of its stream to this process's
  // shard. Unless a heartbeat follows, the member's lease shrinks to the grace. If another process waits to
  // join with the member's rank, the lease ends at once.
  void OnDisconnect(v1::Caller caller);
  // The caller of a Join went away before it got the answer. Ignored if the caller has called again since.
  void OnJoinCancelled(uint64_t instance, uint64_t call);

  // Handles leases, deadlines and pings. Must be called periodically.
  void Tick();

  // Ends the job as failed, for a reason from outside (SIGTERM).
  void Fail(std::string reason);
  // Like Fail(), but saves the job first: training stops, and the job fails with FAILURE_DRAINED once a
  // checkpoint is complete. If there is no store, or saving fails, the failure is `reason`.
  void Drain(std::string reason);

 private:
  // The time between two log lines that say what is still missing.
  static constexpr absl::Duration kComplaintInterval = absl::Seconds(10);
  // After the answer to its Join, a worker's first heartbeat must come within the grace plus kFirstHeartbeat,
  // plus kFirstHeartbeatOfMany for each worker of the job, because all may be answered together.
  static constexpr absl::Duration kFirstHeartbeat = absl::Milliseconds(1500);
  static constexpr absl::Duration kFirstHeartbeatOfMany = absl::Milliseconds(20);

  using WaitingJoin = MemberTable::WaitingJoin;
  using ParkedHeartbeat = MemberTable::ParkedHeartbeat;
  using Phase = MemberTable::Phase;
  using Worker = MemberTable::Worker;

  // The options with which the parts are made: the functions in them call the coordinator.
  JobContext MakeContext();
  Checkpoints::Options CheckpointsOptions();
  JobNumbers::Options NumbersOptions();
  ShardFleet::Options FleetOptions();
  MemberTable::Options MembersOptions();
  JobEnding::Options EndingOptions();

  // All functions below run in the queue.
  void HandleJoin(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call);
  void HandleHeartbeat(const v1::HeartbeatRequest& request, Done<v1::HeartbeatReply> done);
  void HandleLeave(const v1::LeaveRequest& request, Done<v1::LeaveReply> done);
  void HandleNextRange(const v1::NextRangeRequest& request, Done<v1::NextRangeReply> done);
  void HandleTick();
  void HandleShardReport(uint32_t shard, const v1::ShardReport& report);

  // Shards: how they are attached, installed, lost and recovered.
  void HandleShardBroken(uint32_t shard, const absl::Status& status);
  void HandleInstalled(uint32_t shard, const v1::Installed& installed);
  void LoseShard(uint32_t shard, const std::string& why);
  // The job goes back to the newest checkpoint (sync) or, while initial values are awaited, to its beginning.
  void RollBack(const std::string& why);
  void MaybeInstall();
  void OnAllInstalled();
  void TickShards(absl::Time time);
  bool KeepsState(uint32_t shard) const;
  // Whether the job was under way before, so that it can start with any worker. Called once the model is
  // known and all shards are attached.
  bool GoesOn() const;
  bool EnoughWorkers() const;
  // The job was done before this coordinator began, which then only answers the processes that still ask.
  void EndAgain();
  void TrainingStarts();
  // Membership.
  void MaybeAdmit();
  void BroadcastMembership();
  // Sends the membership to the shards and to the members.
  void TellMembership();
  void OnAllAcked();
  void RemoveMember(uint32_t worker, const std::string& why);
  // Answers the calls of a worker that is no longer a member, and takes back its work. `why`: for its
  // heartbeat.
  void TakeOut(uint32_t rank, Worker& member, const std::string& why = "");
  // If the connection of this rank's member broke and a new process of the rank waits, removes the member.
  void ReplaceIfGone(uint32_t rank);
  // A worker left because its gradient is not finite.
  void HandleDivergence(uint32_t worker, const absl::Status& why);
  // Takes a worker's report on its training. If the losses diverge (train.divergence), the job fails.
  void HandleWorkerReport(const v1::Caller& caller, const v1::WorkerReport& report);
  void RemoveReader(uint32_t id);
  // Removes all workers at once. Workers that were being admitted wait again.
  void FenceAll(const std::string& why);
  v1::Membership MembershipNow() const;
  v1::JoinReply MakeJoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const;
  // Evaluations at the ends of epochs.
  void HandleReport(const v1::ReportRequest& request);
  // Tells evaluations_ how far the job is, and asks a member to evaluate an epoch that has ended. If the job
  // waits for evaluations, it continues or ends once the last result is known and, if the epoch is the best
  // so far, its weights are saved.
  void MaybeEvaluate();
  void StopEarly(const std::string& why);
  // Data.
  void ServeRanges();
  // Answers the worker's call for a range if it can be answered. Returns whether the worker has become idle.
  bool ServeRange(uint32_t rank, Worker& member);
  // Tells the shards which workers are idle, once the shards have confirmed the previous membership: at the
  // end of a job many workers become idle at almost the same time.
  void TellIdle();
  void MaybeCommit();
  // Checkpoints and numbers.
  absl::StatusOr<Checkpoints::Snapshot> TakeSnapshot() const;
  // The end.
  void StartDraining();
  // The answer to a Join when nothing is left to do. Then the caller counts as told that the job is done.
  absl::Status NothingLeftFor(const v1::JoinRequest& request);
  // If there is nothing left to do, answers the workers that wait to join.
  void TellNothingLeft();
  void HandleDrain(const std::string& reason);
  void MaybeFinish();
  // Whether all examples are done and the final evaluation has yet to come.
  bool AwaitsEvaluation() const {
    return state_ == v1::DRAINING && evaluations_.AwaitsFinal() && !ending_.ends_again();
  }
  // The job is over: done if `failure` is OK. `asked`: a caller asked for the end, which is not logged as an
  // error and does not wait for the members.
  void EndJob(const absl::Status& failure, bool asked = false);
  // The link of a server has ended after the end of the job.
  void HandleServerGone(uint32_t index, const absl::Status& status);
  void StepAside(const std::string& why);
  // Answers waiting Joins with `joins`, and waiting NextRange, Announce, Pin and Leave calls with `others`.
  void AnswerParked(const absl::Status& joins, const absl::Status& others);

  JobView View() const;
  absl::Duration lease() const { return context_.lease(); }
  absl::Time now() const { return options_.clock->Now(); }
  const JobSize& size() const { return declared_.size(); }
  bool over() const { return state_ == v1::DONE || state_ == v1::FAILED; }

  const Options options_;
  const v1::JobIdentity job_;
  const ModeTraits& mode_;
  v1::JobState state_ = v1::STARTING;
  const absl::Time created_;
  absl::Time last_tick_;
  LogLimit complaints_{kComplaintInterval};
  // Since when there has been work but no worker.
  std::optional<absl::Time> deserted_;

  const JobContext context_;
  Checkpoints checkpoints_;
  JobNumbers numbers_;
  ShardFleet shards_;
  MemberTable members_;
  JobEnding ending_;
  JobDeclaration declared_;

  InstallSource source_;
  InitialUpload upload_;
  JobProgress progress_;
  JobMeter meter_;
  DivergenceWatch losses_;
  JobEvaluations evaluations_;
  VersionPins pins_;
  // Changes of the membership that shards and members have not been told yet.
  struct {
    bool due = false;   // a change waits for numbers
    bool left = false;  // members have left: told at the next tick
    bool idle = false;  // workers have become idle: told once the previous membership is confirmed
  } pending_;

  // Last, so that its destructor runs first.
  SerialQueue queue_;
};

}  // namespace weir
