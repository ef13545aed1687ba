#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/protocol/mode_traits.h"
#include "common/sync/serial_queue.h"
#include "common/system/clock.h"
#include "common/telemetry/int_histogram.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints.h"
#include "ps_server/coordinator/departures.h"
#include "ps_server/coordinator/epoch_evaluations.h"
#include "ps_server/coordinator/farewell.h"
#include "ps_server/coordinator/job_numbers.h"
#include "ps_server/coordinator/job_size.h"
#include "ps_server/coordinator/job_store.h"
#include "ps_server/coordinator/last_save.h"
#include "ps_server/coordinator/loss_curve.h"
#include "ps_server/coordinator/member_table.h"
#include "ps_server/coordinator/progress.h"
#include "ps_server/coordinator/range_table.h"
#include "ps_server/coordinator/shard_fleet.h"
#include "ps_server/coordinator/shard_link.h"
#include "ps_server/coordinator/step_committer.h"
#include "ps_server/coordinator/version_pins.h"

namespace weir {

// Decides what must be decided once: who is a member under which epoch, when a sync step commits, which
// batches go to whom, when the job is done or lost. Off the data path. Knows nothing of gRPC.
//
// Everything happens in one order, that of a SerialQueue; a call that has to wait is parked. Thread-safe.
// What goes to a shard goes in the order of the decisions, so each shard sees the same sequence of epochs,
// commits and pins.
//
// A membership change is made in two rounds, each under an epoch of its own and acknowledged by every shard:
// first the joining member gets each shard's slowest live clock, then on all of them the highest of these,
// from which it starts. So no shard ever sees a lead above the bound, and nobody starts before every shard
// knows it.
//
// With a store the job outlives its servers. A shard whose link breaks or falls silent is attached again; in
// bounded and async it goes on as it is, or is restored alone if it is another incarnation, while the others
// go on. In sync all go back: every member is out at once, all shards are installed anew from the newest
// checkpoint, and members come in again through Join. A coordinator that is started again knows the store's
// numbers and newest checkpoint only; the rest it learns from Join and Attached, and nobody's lease can end
// early, since nobody is a member of it yet.
//
// Members are told where a shard is that came back at another address (ShardFleet) before it is installed:
// until then they may still be answered at the old address, by a process that only seemed to be gone.
class Coordinator {
 public:
  struct Options {
    v1::JobConfig config;
    // Workers that train, as the config or the cluster spec says. At least 1.
    uint32_t workers = 1;
    // By rank, as messages are to name them: "worker:1 at 10.0.0.1:2222". May be short or empty.
    std::vector<std::string> worker_names;
    // Of all shards, this process's first. One entry: learn them from the first worker that joins.
    std::vector<std::string> shard_addresses;
    // What a job without a checkpoint of its own begins with: the step of one in checkpoint.init_from, of
    // which all shards take the weights alone. None: version 0.
    std::optional<uint64_t> init_from;
    // What a server on this machine may take; 0: no limit is known. A model that cannot fit is refused.
    uint64_t memory_bytes = 0;
    // Outlives the coordinator.
    const Clock* clock = &Clock::Real();
    ShardLinkFactory open_link;
    // Once, when the job is over; `failure` is OK if it is done. Must not block.
    std::function<void(const v1::ClusterStatus& status, const absl::Status& failure)> on_end;
  };

  // Without a store nothing is saved, and a lost server ends the job. If !CanGoOn() from what the store
  // has, the job fails at once.
  explicit Coordinator(Options options, std::unique_ptr<JobStore> store = nullptr);
  // Answers what is parked with an error.
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

  // A connection of a member broke, that of one of its calls or of its stream to this process's shard: its
  // lease shrinks to the grace unless a heartbeat follows, or ends at once if another process of its index
  // has come.
  void OnDisconnect(v1::Caller caller);
  // A Join's caller went away before it had the answer. Without effect if it has called again since.
  void OnJoinCancelled(uint64_t instance, uint64_t call);

  // Leases, deadlines, pings. To be called every so often.
  void Tick();

  // Ends the job as failed, for a reason from outside (SIGTERM).
  void Fail(std::string reason);
  // The same, but saves first: nobody trains any more, and once a checkpoint is complete the job fails with
  // FAILURE_DRAINED. If there is no store, or it cannot be saved, the failure is `reason`.
  void Drain(std::string reason);

 private:
  static constexpr int kMaxServers = 1024;
  // Between two words of what is still missing.
  static constexpr absl::Duration kComplaintInterval = absl::Seconds(10);
  // How long the store gets to say whose the job is.
  static constexpr absl::Duration kConfirmed = absl::Seconds(5);
  // Between two words of Joins that were refused.
  static constexpr absl::Duration kRefusalInterval = absl::Seconds(1);
  // From the answer to its Join until a worker's first heartbeat, beside the grace; and for each worker that
  // may have been answered together with it.
  static constexpr absl::Duration kFirstHeartbeat = absl::Milliseconds(1500);
  static constexpr absl::Duration kFirstHeartbeatOfMany = absl::Milliseconds(20);

  using WaitingJoin = MemberTable::WaitingJoin;
  using ParkedHeartbeat = MemberTable::ParkedHeartbeat;
  using Phase = MemberTable::Phase;
  using Worker = MemberTable::Worker;
  using Reader = MemberTable::Reader;

  // All below run in the queue.
  void HandleJoin(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call);
  // Whether who asks may come in. If so, the job is what it says, unless that is known.
  absl::Status CheckJoin(const v1::JoinRequest& request);
  absl::Status CheckAddresses(const v1::JoinRequest& request) const;
  // Of the job that a worker with this many examples declares.
  absl::Status CheckLength(const v1::JoinRequest& request) const;
  // Who has declared what the job is: "the job's", or whose wish it is as yet. `worker`: the first of them.
  std::string DeclaredBy(bool worker) const;
  // What the job is does not change any more.
  bool settled() const { return begun_ || (recoverable() && checkpoints_->newest().has_value()); }
  // Unless it is settled: what nobody who waits has declared, the next one may.
  void ForgetWhoLeft();
  // Whether the next one who joins says where the servers are: the cluster spec of ps:0 does not, and nobody
  // waits who has.
  bool AddressesOpen() const;
  // Of the job, from the size of its training set.
  void SetLength(uint64_t train_examples);
  // The job is stopped early.
  void Shorten(uint64_t examples, uint64_t batches);
  void HandleHeartbeat(const v1::HeartbeatRequest& request, Done<v1::HeartbeatReply> done);
  void HandleLeave(const v1::LeaveRequest& request, Done<v1::LeaveReply> done);
  void HandleNextRange(const v1::NextRangeRequest& request, Done<v1::NextRangeReply> done);
  void HandlePin(const v1::PinRequest& request, Done<v1::PinReply> done);
  void HandleUnpin(const v1::UnpinRequest& request);
  void HandleTick();
  void TickMembers(absl::Time time);
  void HandleShardReport(uint32_t shard, const v1::ShardReport& report);

  // Shards: attached, installed, lost, back.
  ShardFleet::Options FleetOptions(const JobStore* store);
  void HandleAttached(uint32_t shard, const v1::Attached& attached);
  // No member is answered by the shard's old address any more.
  bool AllKnowAddress(const ShardFleet::Shard& shard) const;
  void HandleShardBroken(uint32_t shard, const absl::Status& status);
  void HandleInstalled(uint32_t shard, const v1::Installed& installed);
  void LoseShard(uint32_t shard, const std::string& why);
  // sync: everybody goes back to the newest checkpoint.
  void RollBack(const std::string& why);
  void MaybeInstall();
  void SendInstall(uint32_t shard);
  void OnAllInstalled();
  void TickShards(absl::Time time);
  bool KeepsState(uint32_t shard) const;
  bool EnoughWorkers() const;
  // The checkpoint to go on from is one of a job that was done.
  bool DoneBefore() const;
  // It only remains to tell those who still ask.
  void EndAgain();
  // Training goes on; in this incarnation of the coordinator, it starts.
  void TrainingStarts();
  // Shard 0 has just said how far it is: what is known of it at other times is of some moment ago.
  void SampleProgress();
  bool recoverable() const { return checkpoints_ != nullptr; }
  // Membership.
  void MaybeAdmit();
  void BroadcastMembership();
  // To the shards, and to the members.
  void TellMembership();
  void OnAllAcked();
  void RemoveMember(uint32_t worker, const std::string& why);
  void Disconnected(Worker& member);
  // A member whose connection broke makes room for a new process of its rank.
  void ReplaceIfGone(uint32_t rank);
  // A worker gave up: its gradient is not finite, or its loss has diverged.
  void HandleDivergence(uint32_t worker, const absl::Status& why);
  void RemoveReader(uint32_t id);
  // All at once; those that were being admitted wait again.
  void FenceAll(const std::string& why);
  v1::Membership MembershipNow() const;
  v1::JoinReply MakeJoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const;
  // Epochs' evaluations.
  void MakeEvaluations();
  void HandleReport(const v1::ReportRequest& request);
  // Tells them how far the job is, and has somebody evaluate an epoch that has ended.
  void MaybeEvaluate();
  // Where the job waits for evaluations: once the last one is known, and its weights are saved if they are
  // the best, the job goes on or ends.
  void GoOnAfterEvaluation();
  // Whether that changes anything.
  bool SetWorkEnd();
  // Empty: it goes on.
  std::string WhyItStopsHere() const;
  void StopEarly(const std::string& why);
  void SaveBest(const v1::EpochEvaluation& epoch);
  // Whom the next step has waited for since a second or more, and for what; "": nobody.
  std::string EvaluatorThatHolds() const;
  // As an entry has it, of weights of this version.
  uint64_t StepOf(uint64_t version) const;
  // sync: steps; else batches that are complete.
  uint64_t progress() const {
    return mode_.commits_steps ? steps_.committed() : ranges_.has_value() ? ranges_->completed_batches() : 0;
  }
  // Data.
  void ServeRanges();
  void MaybeCommit();
  // Checkpoints and numbers.
  void MakeCheckpoints(std::unique_ptr<JobStore> store);
  absl::StatusOr<Checkpoints::Snapshot> TakeSnapshot() const;
  // Whether so many more epochs and incarnations may be used. If not, what needs them goes on once they may.
  bool HasNumbers(uint64_t count);
  void AskForNumbers(uint64_t count);
  // The end.
  void StartDraining();
  void SaveLast();
  // It came to nothing: says so now and then, or has waited for long enough.
  void CannotSaveLast(const std::string& why);
  // The work is done and saved: answers those who wait to hear it.
  void OnSaved();
  // What who asks to join hears when there is nothing to do: from now on it has been told.
  absl::Status NothingLeftFor(const v1::JoinRequest& request);
  // Workers that wait to come in, if there is nothing to do for them.
  void TellNothingLeft();
  void HandleDrain(const std::string& reason);
  void MaybeFinish();
  // All examples are done, and somebody has yet to evaluate the weights. Not where a worker has left without
  // that: then it is a program that does no such thing.
  bool AwaitsEvaluation() const {
    return state_ == v1::DRAINING && !evaluation_.final() && !nobody_evaluates_ && !ends_again_;
  }
  // Workers that may yet come to hear that the job is done.
  std::vector<std::string> MayCome() const;
  // asked: somebody wants it to end; it is nobody's fault.
  void FailJob(const absl::Status& failure, bool asked = false);
  // The member with this incarnation has left the job, or its process is gone.
  void KnowsOfFailure(uint64_t incarnation);
  // Ends a job that has failed once its members know of it, or have had the time to.
  void EndOnceAllKnow();
  // Calls on_end, once.
  void SayEnd();
  void StepAside(const std::string& why);
  // If another coordinator has the job, that may be why.
  void FailUnlessReplaced(const absl::Status& failure);
  // What who asks to join a failed job is told.
  absl::Status RefuseJoin() const;
  void End();
  // Of every call that still waits.
  void AnswerParked(const absl::Status& joins, const absl::Status& others);

  void Changed();  // revision up, parked heartbeats answered
  // If there is one.
  void AnswerHeartbeat(ParkedHeartbeat& heartbeat, bool fenced, const std::string& why = "");
  v1::ClusterStatus MakeStatus() const;
  std::vector<std::string> WaitingFor() const;
  std::string WorkerName(uint32_t rank) const;
  uint32_t needed_workers() const;
  // bounded, async: as far as shard 0 has said, the newest checkpoint knows.
  uint64_t batches_done() const;
  uint64_t examples_done() const;
  // Applied on shard 0; in sync those of all steps that are committed.
  uint64_t pushes_done() const;
  uint64_t steps_done() const;
  bool AllDone() const;
  v1::ConsistencyConfig::OnNonfinite on_nonfinite() const {
    return options_.config.consistency().on_nonfinite();
  }
  absl::Duration lease() const { return absl::Seconds(options_.config.cluster().lease_seconds()); }
  absl::Duration grace() const { return absl::Seconds(options_.config.cluster().grace_seconds()); }
  absl::Time now() const { return options_.clock->Now(); }
  uint64_t incarnation() const {
    return recoverable() ? checkpoints_->store().opened().coordinator_incarnation : 1;
  }
  bool over() const { return state_ == v1::DONE || state_ == v1::FAILED; }

  const Options options_;
  const ModeTraits& mode_;
  v1::JobState state_ = v1::STARTING;
  uint64_t revision_ = 1;
  const absl::Time created_;
  // When the training of this incarnation began and ended; how many examples were done when it began.
  absl::Time started_, ended_;
  uint64_t examples_before_ = 0;
  absl::Time last_tick_, next_ping_, next_complaint_, next_refusal_;
  uint64_t unsaid_refusals_ = 0;
  // Since when no worker is live while there is work.
  std::optional<absl::Time> deserted_;
  absl::Status failure_;
  bool said_end_ = false;
  // Why members with incarnations up to this one are out, if not by their own leases.
  std::string fenced_why_;
  uint64_t fenced_up_to_ = 0;
  // Not empty: the job is being drained, for this reason.
  std::string drain_;

  // Some shard was installed, or goes on.
  bool begun_ = false;
  // As the checkpoint has it, or the first Join: every later one must agree. Until it is settled it is the
  // wish of those who wait, and is forgotten with them.
  std::optional<ModelSpec> model_;
  JobSize size_;

  ShardFleet shards_;
  MemberTable members_;
  Departures departures_;

  StepCommitter steps_;
  std::optional<RangeTable> ranges_;
  std::optional<ProgressMeter> progress_;
  LossCurve loss_curve_;
  // Once the job's length is known.
  std::optional<EpochEvaluations> evaluations_;
  // HeartbeatReply.work_end
  std::optional<uint64_t> work_end_;
  // Whose weights a checkpoint holds; and for which one is being taken.
  std::optional<v1::BestEpoch> best_;
  std::optional<v1::EpochEvaluation> saving_best_;
  std::string stopped_early_;  // why; empty: it was not
  uint64_t recoveries_ = 0;
  // That were sent.
  uint64_t installs_ = 0;
  // bounded, async: all shards hold just what the newest checkpoint does.
  bool untouched_ = false;
  Farewell farewell_;
  VersionPins pins_;
  // Members have left, and the next tick tells of it.
  bool left_untold_ = false;
  LastSave last_save_;
  // The job was done when this coordinator began.
  bool ends_again_ = false;
  // By those who were told so: servers of this start, which nobody else needs to know. For people.
  int named_servers_ = 0;
  bool said_lingering_ = false;
  v1::Evaluation evaluation_;
  bool nobody_evaluates_ = false;
  // The ping whose stats are the last that the summary needs.
  uint64_t final_ping_ = 0;

  // nullptr: the job has no store.
  std::unique_ptr<Checkpoints> checkpoints_;
  JobNumbers numbers_;
  absl::Time next_reserve_;
  // Somebody waits for numbers; the change of the membership does.
  bool needs_numbers_ = false, broadcast_due_ = false;
  // The job fails with this once the store says that no other coordinator has the job, or says nothing.
  struct Failing {
    absl::Status failure;
    absl::Time until;
  };
  std::optional<Failing> failing_;

  // Last, so that its destructor runs first.
  SerialQueue queue_;
};

}  // namespace weir
