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
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/coordinator/evaluation/divergence_watch.h"
#include "ps_server/coordinator/evaluation/job_evaluations.h"
#include "ps_server/coordinator/job/job.h"
#include "ps_server/coordinator/job_ending.h"
#include "ps_server/coordinator/members/job_declaration.h"
#include "ps_server/coordinator/members/member_table.h"
#include "ps_server/coordinator/members/version_pins.h"
#include "ps_server/coordinator/progress/job_meter.h"
#include "ps_server/coordinator/progress/job_progress.h"
#include "ps_server/coordinator/progress/logged_metrics.h"
#include "ps_server/coordinator/shards/initial_values.h"
#include "ps_server/coordinator/shards/shard_fleet.h"

namespace weir {

// The parts of a job, which it connects, and what follows from several of them. The Coordinator, Admission
// and Recovery decide what happens to the parts, and when.
//
// Belongs to the coordinator's queue.
struct JobParts {
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
  // The functions of the coordinator that the parts call.
  struct Events {
    // As in JobContext.
    std::function<void(std::function<void()>)> post;
    std::function<void(const absl::Status& failure)> fail;
    std::function<void(const std::string& why)> replaced;
    // As in JobNumbers::Options, ShardFleet::Options, JobEnding::Options and InitialUpload.
    std::function<void(bool needed)> reserved;
    std::function<void(uint32_t shard, const v1::ShardReport& report)> shard_report;
    std::function<void(uint32_t shard, const absl::Status& status)> link_ended;
    std::function<void()> saved;
    std::function<void(bool uploaded)> values_there;
    // Each of these does what the new state allows. Shards may be installed; waiting workers may get ranges;
    // an epoch may be evaluated, and a step committed; the job may end.
    std::function<void()> may_install, may_serve, may_continue, may_finish;
    // All examples are done. Not empty: training stops early, for this reason.
    std::function<void(const std::string& stopped)> work_done;
  };
  JobParts(Options options, Events events, std::unique_ptr<JobStore> store);

  const v1::JobConfig& config() const { return options.config; }
  absl::Time now() const { return context.now(); }
  absl::Duration lease() const { return context.lease(); }
  bool over() const { return state == v1::DONE || state == v1::FAILED; }
  // Whether the job has yet to start, or to start again.
  bool waits() const { return state == v1::STARTING || state == v1::RECOVERING; }
  // Whether training is under way, or its end is being saved and told.
  bool started() const { return state == v1::RUNNING || state == v1::DRAINING; }
  const JobSize& size() const { return declared.size(); }

  // Whether this shard, which is attached, continues with what it holds.
  bool KeepsState(uint32_t shard) const;
  // Whether the job was under way before, so that it can start with any worker. Known once the model is known
  // and all shards are attached.
  bool GoesOn() const;
  bool EnoughWorkers() const;
  // Whether all examples are done and the final evaluation has yet to come.
  bool AwaitsEvaluation() const {
    return state == v1::DRAINING && evaluations.AwaitsFinal() && !ending.ends_again();
  }
  // HeartbeatReply.work_end: of the next evaluation, or where the job ends early.
  std::optional<uint64_t> WorkEnd() const;
  // Training starts or continues.
  void OnTrainingStarts();
  // The state for a checkpoint, or why none can be taken now.
  absl::StatusOr<Checkpoints::Snapshot> Snapshot() const;
  v1::Membership Membership() const;
  v1::JoinReply JoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const;

  const Options options;
  const Events events;
  const v1::JobIdentity identity;
  const ModeTraits& mode;
  v1::JobState state = v1::STARTING;

  // Limits the log lines that say what is still missing.
  LogLimit complaints{absl::Seconds(10)};

  const JobContext context;
  Checkpoints checkpoints;
  JobNumbers numbers;
  ShardFleet shards;
  MemberTable members;
  JobEnding ending;
  JobDeclaration declared;
  InstallSource source;
  InitialUpload upload;
  JobProgress progress;
  JobMeter meter;
  LoggedMetrics logged;
  DivergenceWatch losses;
  JobEvaluations evaluations;
  VersionPins pins;

 private:
  // Fills in the job's state in a heartbeat's answer, as MemberTable::Options says.
  void FillIn(const MemberTable::ParkedHeartbeat& heartbeat, bool news, v1::HeartbeatReply* reply) const;
  // The job is over, and no process is awaited any more.
  void TellEnd() const;
};

}  // namespace weir
