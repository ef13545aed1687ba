#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/statistics.h"
#include "common/protocol/interval_set.h"
#include "common/protocol/mode_traits.h"
#include "proto/checkpoint.pb.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/consistency/staleness_rule.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/calls/shard_members.h"
#include "ps_server/shard/decision_log.h"
#include "ps_server/shard/restore/shard_loader.h"
#include "ps_server/shard/staged_parts.h"

namespace weir {

// The results of a shard's pushes, apart from the counters, for the coordinator and for checkpoints.
struct PushTally {
  // `batches`: done here. `stale_batches`, with the log: the gradient came from an earlier incarnation.
  IntervalSet batches, stale_batches;
  // Of the applied pushes: the staleness in versions, and the lead in clocks.
  IntHistogram staleness, lead;

  uint64_t batches_settled() const { return batches.size() + stale_batches.SizeWithout(batches); }
};

// Counters for metrics. Thread-safe.
struct ShardCounters {
  // A checkpoint restores these and `version`.
  std::atomic<uint64_t> pushes_applied{0}, pushes_refused{0}, pushes_lost{0};
  // Of those refused: too stale (StalenessRule).
  std::atomic<uint64_t> pushes_dropped{0};
  std::atomic<uint64_t> version{0};
  std::atomic<uint64_t> pushes_repeated{0};
  std::atomic<uint64_t> bytes_pushed{0}, bytes_pulled{0};
  std::atomic<uint64_t> parked_pulls{0};
  // Versions that were written off because readers held them too long (VersionReaders).
  std::atomic<uint64_t> versions_written_off{0};
  // The longest wait of a call, in milliseconds, as of the last Tick().
  std::atomic<uint64_t> longest_wait_ms{0};
  std::atomic<uint64_t> checkpoints_written{0};
};

// One incarnation of a shard: its part of the model, its members with their clocks, and the results of their
// pushes. A push, a commit and a membership change these together. Nothing waits here: the shard decides when
// a change takes effect, and answers calls. Between End() and Begin() nothing is installed.
//
// Belongs to the shard's queue.
class Incarnation {
 public:
  // The arguments outlive this object. `install` holds, at each Begin(), the Install that begins.
  Incarnation(const v1::JobConfig& config, const v1::Install& install, ShardCounters& counters)
      : config_(config), install_(install), counters_(counters) {}

  // Begins with what was loaded, and replays its records.
  void Begin(uint64_t number, ShardLoader::Loaded loaded, std::unique_ptr<ConsistencyPolicy> policy);
  void End();
  v1::ShardState State() const;

  // 0: nothing is installed, and the next three are null.
  uint64_t number() const { return number_; }
  const std::shared_ptr<BlockStore>& store() const { return store_; }
  const std::unique_ptr<ConsistencyPolicy>& policy() const { return policy_; }
  // Also null if the job has no embedding tables. If rows take effect early, the tables' version counts all
  // parts of all steps, committed or not; otherwise it is the store's.
  const std::shared_ptr<ShardTables>& tables() const { return tables_; }
  uint64_t model_hash() const { return model_hash_; }
  ShardMembers& members() { return members_; }
  const ShardMembers& members() const { return members_; }
  StagedParts& staged() { return staged_; }
  const StagedParts& staged() const { return staged_; }
  const PushTally& tally() const { return tally_; }
  // Fills in the version, the pushes and the clocks.
  void Describe(v1::ShardStats* stats) const;
  // The clocks of the workers that count.
  void AddClocks(google::protobuf::RepeatedPtrField<v1::WorkerClock>& clocks) const;

  // CheckModel(): whether the header is of this model. CheckHeader(): whether any push can have it.
  absl::Status CheckModel(const v1::PushRequest& header) const;
  absl::Status CheckHeader(const v1::PushRequest& header) const;
  // Called before a gradient is taken and before it is used. `pending`: the versions that decisions before
  // this push will still make. InvalidArgument: no push can have this header.
  absl::StatusOr<Verdict> VerdictOn(const v1::PushRequest& header, uint64_t pending) const;
  // The factor of a gradient whose push takes effect after `pending` more versions.
  double FactorOf(const v1::PushRequest& header, uint64_t pending) const;
  std::string NonFinite(const PushArrival& arrival) const;

  // As ShardMembers::DeclareLost(). Returns whether any pushes are lost.
  bool DeclareLost(uint32_t worker, uint64_t answered_clock);
  // Makes the version that results from a decision. Errors: as ShardTables::Update().
  absl::Status Apply(const Decision& decision);
  // Records a push with its outcome, after Apply(), and completes the reply.
  void Record(const v1::PushRequest& header, v1::PushReply* reply);

  // sync: whether the rows of a staged part take effect as it arrives.
  bool rows_early() const { return TablesCountParts(config_); }
  // Stages a part, and takes `waiter` unless it fails. `refusal`: empty, or why no step may contain the part;
  // a refused part needs no gradient. Returns the coordinator's report; nullopt: parts are missing. Errors:
  // as Apply().
  absl::StatusOr<std::optional<v1::ShardReport>> Stage(const v1::PushRequest& header, Slab gradient,
                                                       PushedRows rows, std::string refusal,
                                                       StagedParts::Waiter& waiter);
  // Measures this shard's part of the norms that the step's commit needs. Changes nothing.
  v1::StepMeasured Measure(const v1::MeasureStep& measure, const StagedParts::Gradients& gradients) const;
  // Errors: as Apply(), and a failure of the job if the commit's factors are not of this model.
  absl::Status Commit(
      const v1::CommitStep& commit, const StagedParts::Gradients& gradients,
      const std::function<void(const Verdict& verdict, std::vector<StagedParts::Waiter>& waiters)>& answer);

 private:
  // bounded, async; the push was computed from a version of this incarnation.
  uint64_t StalenessOf(const v1::PushRequest& header, uint64_t pending) const {
    return store_->count() + pending - header.base().count();
  }
  void Restore(const v1::ShardState& state);
  void Replay(const v1::LoggedPush& record);
  bool logs() const { return config_.server().durability() == v1::ServerConfig::DURABILITY_LOG; }

  const v1::JobConfig& config_;
  const v1::Install& install_;
  ShardCounters& counters_;
  uint64_t number_ = 0;
  StalenessRule staleness_rule_;
  std::shared_ptr<BlockStore> store_;
  std::shared_ptr<ShardTables> tables_;
  std::unique_ptr<ConsistencyPolicy> policy_;
  uint64_t model_hash_ = 0;
  ShardMembers members_{TraitsOf(config_).keeps_clocks};
  StagedParts staged_;
  EarlyRows early_rows_;
  PushTally tally_;
};

}  // namespace weir
