#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/threads/serial_queue.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/admission.h"
#include "ps_server/coordinator/completion.h"
#include "ps_server/coordinator/job_parts.h"
#include "ps_server/coordinator/recovery.h"

namespace weir {

// Takes the decisions that a job must take once: who is a member under which epoch, when a sync step commits,
// which worker gets which batches, and when the job is done or has failed. Off the data path. Knows nothing
// of gRPC.
//
// A SerialQueue puts all calls and events in one order; a call that has to wait is parked. Messages to the
// shards go out in the order of the decisions, so every shard sees the same sequence of epochs, commits and
// pins. Thread-safe.
//
// JobParts has the state of the job. Admission decides on members, Recovery on shards, Completion on the end,
// and this class on steps and evaluations.
//
// With a store the job outlives its servers. If the coordinator is started again, it knows only the store's
// numbers and newest checkpoint. It learns the rest from Join and Attached. No lease can end early then,
// because the new coordinator has no members yet.
//
// Where a worker uploads the initial values (InitialUpload), members are admitted before the values are
// there, and the job begins once the values are on all shards and saved.
class Coordinator {
 public:
  using Options = JobParts::Options;

  // Without a store nothing is saved, and a lost server ends the job. If the job cannot continue from the
  // store's newest checkpoint (CanGoOn()), it fails at once.
  explicit Coordinator(Options options, std::unique_ptr<JobStore> store = nullptr);
  // Answers all parked calls with an error.
  ~Coordinator();

  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // `call` tells this call from its repeats, for OnJoinCancelled().
  void Join(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call = 0) {
    queue_.Post([this, request = std::move(request), done = std::move(done), call]() mutable {
      admission_.Join(std::move(request), std::move(done), call);
    });
  }
  void Heartbeat(v1::HeartbeatRequest request, Done<v1::HeartbeatReply> done) {
    queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
      admission_.Heartbeat(request, std::move(done));
    });
  }
  void Leave(v1::LeaveRequest request, Done<v1::LeaveReply> done) {
    queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
      admission_.Leave(request, std::move(done));
    });
  }
  void NextRange(v1::NextRangeRequest request, Done<v1::NextRangeReply> done);
  void Pin(v1::PinRequest request, Done<v1::PinReply> done);
  void Unpin(v1::UnpinRequest request, Done<v1::UnpinReply> done);
  void Report(v1::ReportRequest request, Done<v1::ReportReply> done);
  void Stop(v1::StopRequest request, Done<v1::StopReply> done) {
    queue_.Post(
        [this, request = std::move(request), done = std::move(done)] { completion_.Stop(request, done); });
  }
  void Checkpoint(v1::CheckpointRequest request, Done<v1::CheckpointReply> done);
  void Announce(v1::AnnounceRequest request, Done<v1::AnnounceReply> done);
  void Status(Done<v1::ClusterStatus> done, bool with_loss_curve = false);

  // A member's connection broke: the connection of one of its calls, or of its stream to this process's
  // shard. Unless a heartbeat follows, the member's lease shrinks to the grace. If another process waits to
  // join with the member's rank, the lease ends at once.
  void OnDisconnect(v1::Caller caller) {
    queue_.Post([this, caller = std::move(caller)] { admission_.OnDisconnect(caller); });
  }
  // The caller of a Join went away before it got the answer. Ignored if the caller has called again since.
  void OnJoinCancelled(uint64_t instance, uint64_t call) {
    queue_.Post([this, instance, call] { admission_.OnJoinCancelled(instance, call); });
  }

  // Handles leases, deadlines and pings. Must be called periodically.
  void Tick();

  // Ends the job as failed, for a reason from outside (SIGTERM).
  void Fail(const std::string& reason);
  // Like Fail(), but saves the job first: training stops, and the job fails with FAILURE_DRAINED once a
  // checkpoint is complete. If there is no store, or saving fails, the failure is `reason`.
  void Drain(std::string reason) {
    queue_.Post([this, reason = std::move(reason)] { completion_.Drain(reason); });
  }

 private:
  // All functions below run in the queue.
  void HandleShardReport(uint32_t shard, const v1::ShardReport& report);
  void MaybeCommit();
  // Tells the evaluations how far the job is, and asks a member to evaluate an epoch that has ended. If the
  // job waits for evaluations, it continues or ends once the last result is known and, if the epoch is the
  // best so far, its weights are saved.
  void MaybeEvaluate();
  void ServeRanges();
  // Answers the worker's call for a range if it can be answered. Returns whether the worker has become idle.
  bool ServeRange(uint32_t rank, MemberTable::Worker& member);

  JobParts job_;
  Admission admission_;
  Recovery recovery_;
  Completion completion_;
  const absl::Time created_;
  absl::Time last_tick_;

  // Last, so that its destructor runs first.
  SerialQueue queue_;
};

}  // namespace weir
