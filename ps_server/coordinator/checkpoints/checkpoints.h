#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {

// Decides when the next checkpoint is due: after checkpoint.every_steps, after checkpoint.every_seconds or,
// without either, at an interval that the schedule chooses. The caller passes the time. Not thread-safe.
//
// At an interval of sqrt(2 * cost * mean time between losses) the cost of saving equals the work that a lost
// server costs (Young 1974). The schedule chooses this interval. It takes the whole time of the last
// checkpoint for the cost, although training continues meanwhile. It assumes one loss a minute: if a job
// seldom loses a server, it pays little for that, and if it often does, it loses only seconds. The interval
// is at least a second and at most a minute, but at least ten times the time of a checkpoint.
class CheckpointSchedule {
 public:
  CheckpointSchedule(const v1::CheckpointConfig& config, absl::Time now);

  // Whether a checkpoint is due. `steps`: the job's steps so far.
  bool Due(absl::Time now, uint64_t steps) const;

  // A checkpoint at this many steps has begun, or the job goes back to this many steps.
  void Begun(absl::Time now, uint64_t steps);
  // The checkpoint that has begun is complete.
  void Completed(absl::Time now);
  // The checkpoint failed: the next try comes a little later.
  void Failed(absl::Time now);

  // The current interval between two checkpoints; infinite if only steps count.
  absl::Duration interval() const;

 private:
  const uint64_t every_steps_;
  const absl::Duration every_;  // zero: by steps, or else at the chosen interval
  absl::Time begun_;
  uint64_t steps_ = 0;  // at the last checkpoint
  absl::Time not_before_;
  absl::Duration took_;
};

// Takes a job's checkpoints, one at a time: has every shard keep its version, makes room in the store, has
// every shard write its part, and commits the checkpoint. Training continues meanwhile, however long the
// store takes. Not thread-safe: calls and the store's answers come in the coordinator's order.
class Checkpoints {
 public:
  // The state that the coordinator puts into a checkpoint.
  struct Snapshot {
    // Names the checkpoint, and is above the steps of all that exist. In sync it is the state's own step if
    // that is high enough. If the checkpoint fails, a later one may have the same step.
    uint64_t step = 0;
    // The job's steps so far.
    uint64_t progress = 0;
    // Whether the newest checkpoint holds exactly this state and the same results of the job.
    bool saved = false;
    uint32_t num_shards = 0;
    v1::Model model;
    v1::CoordinatorState job;
  };
  struct Options {
    // The current state, or why no checkpoint can be taken now.
    std::function<absl::StatusOr<Snapshot>()> snapshot;
    // Sends a message to every shard.
    std::function<void(const v1::ControlMessage&)> broadcast;
    // unsettled() or newest() has changed.
    std::function<void()> changed;
  };
  using Done = std::function<void(absl::StatusOr<v1::CheckpointReply>)>;

  // Without a store the job has no checkpoints.
  Checkpoints(const JobContext& job, std::unique_ptr<JobStore> store, Options options);

  // Whether the job has a store. Without one there is no checkpoint, and no caller may ask for one.
  bool enabled() const { return enabled_; }
  // The state of the store when this coordinator began.
  const JobStore::Opened& opened() const { return opened_; }

  // Answers once the state of this moment is saved. Without `of_now`, a checkpoint that is being taken is
  // enough. Unavailable: the checkpoint failed, or none can be taken at present. With `of_now` the caller
  // logs the failure.
  void Request(bool of_now, Done done);
  // Begins a checkpoint if one is due. `progress`: the job's steps so far.
  void TakeIfDue(uint64_t progress);
  // Gives up a checkpoint that takes too long. Call it from time to time.
  void Tick();
  void OnWritten(uint32_t shard, const v1::CheckpointWritten& written);
  // Gives up the current checkpoint, because shard `lost` was lost, unless the store commits it already.
  // Requests for the next checkpoint fail at once: the job may go back, and the next checkpoint would be of a
  // different state. `goes_back`: the other shards go back, and do not report on files that they still write.
  void Abandon(const std::string& why, uint32_t lost, bool goes_back);
  // A shard has found files of the newest checkpoint damaged or missing (`why`). Calls JobStore::PassOver().
  // OK: an earlier checkpoint is now the newest. Call it while no checkpoint is under way.
  void PassOver(const std::string& why, std::function<void(const absl::Status&)> done);
  // The job goes back to the newest checkpoint, of this many steps, or to its beginning.
  void Rewound(uint64_t steps) { schedule_.Begun(job_.now(), steps); }

  // Whether a checkpoint is under way, or shards still write their parts of one that has failed.
  bool busy() const { return current_.has_value() || remains_.has_value(); }
  // Whether a checkpoint is under way that may become the newest.
  bool unsettled() const { return current_.has_value() && current_->abandoned.empty(); }
  bool any() const { return newest_.has_value(); }
  const std::optional<v1::CheckpointManifest>& newest() const { return newest_; }
  // sync: the committed steps in the newest checkpoint; 0 without one.
  uint64_t committed_steps() const { return newest_.has_value() ? newest_->job().committed_steps() : 0; }
  // When the newest checkpoint was completed, or found in the store.
  absl::Time newest_since() const { return newest_since_; }
  // A step above the steps of all checkpoints that were begun or exist.
  uint64_t next_step() const { return next_step_; }
  std::string FolderOf(uint64_t step) const;
  // The folder of the newest checkpoint. Empty: there is no checkpoint.
  std::string newest_folder() const;
  // Says for messages what the current checkpoint waits for. Empty: for nothing, or not for long.
  std::string WaitingFor() const;
  // Says that the store seems to hang. The caller cannot give an operation of the store up, since it may take
  // effect later. Empty: the store does not hang.
  std::string StoreHangs() const;
  // JobStore::Reserve(); `done` runs in the coordinator's order.
  void Reserve(const JobStore::Numbers& up_to, std::function<void(const absl::Status&)> done) {
    store_->Reserve(up_to, InOrder(std::move(done)));
  }

  // Answers waiting requests with `why`, and gives the store to the caller, who destroys it outside of the
  // coordinator's order. The store's last answers come meanwhile. Make no request afterwards.
  std::unique_ptr<JobStore> Close(const absl::Status& why);

 private:
  enum class Phase {
    kBeginning,   // the shards keep their version, and the store makes room
    kWriting,     // the shards write
    kCommitting,  // the store commits
  };
  struct Current {
    Phase phase = Phase::kBeginning;
    absl::Time since;
    uint64_t attempt = 0;
    Snapshot of;
    std::map<uint32_t, v1::CheckpointFile> files;  // by shard
    std::vector<Done> requests;
    // Some request was of_now.
    bool urgent = false;
    // Not empty: the checkpoint was given up for this reason.
    std::string abandoned;
  };
  // A checkpoint that has failed on one shard, when others were still writing their parts.
  struct Remains {
    uint64_t step = 0, attempt = 0;
    absl::Time since;
    std::set<uint32_t> shards;
  };

  // Begins a checkpoint for the requests in next_, or because one is due.
  void Begin();
  // Begins a checkpoint in a turn of its own, if there are requests in next_.
  void BeginNext();
  // The shards that have yet to write their part of the current checkpoint.
  std::set<uint32_t> Writing() const;
  // Whether the tables' files may hold only the changes since the newest checkpoint.
  bool MayFollow(const Snapshot& of) const;
  void OnBegun(const absl::Status& status);
  void SetNewest(v1::CheckpointManifest manifest);
  void OnCommitted(const v1::CheckpointManifest& manifest, const absl::Status& status);
  // This shard no longer writes files of the checkpoint that has failed.
  void EndRemains(uint32_t shard);
  void Fail(const std::string& why);
  // Fail(), because of this shard, which writes no more. The other shards may still write, and report that.
  void FailOn(uint32_t shard, const std::string& why);
  // The current checkpoint is over: answers its requests, and begins the next one if it was requested.
  void End(const absl::StatusOr<v1::CheckpointReply>& reply);
  void AnswerAll(std::vector<Done> requests, const absl::StatusOr<v1::CheckpointReply>& reply);
  JobStore::Done InOrder(std::function<void(const absl::Status&)> then);

  const JobContext& job_;
  std::unique_ptr<JobStore> store_;
  const Options options_;
  const bool enabled_;
  const JobStore::Opened opened_;
  CheckpointSchedule schedule_;
  std::optional<Current> current_;
  // A shard writes one part at a time, so the next checkpoint begins when the remains are done.
  std::optional<Remains> remains_;
  // Requests for the checkpoint after the current one.
  std::vector<Done> next_;
  bool next_urgent_ = false;
  std::optional<v1::CheckpointManifest> newest_;
  // How many checkpoints the newest one builds on.
  uint32_t chain_ = 0;
  absl::Time newest_since_;
  uint64_t next_step_;
  uint64_t attempts_ = 0;
};

}  // namespace weir
