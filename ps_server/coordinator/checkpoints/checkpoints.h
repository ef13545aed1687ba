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
#include "ps_server/coordinator/job/job_context.h"

namespace weir {

// Decides when the next checkpoint is due: after so many steps, after so much time, or by itself. The caller
// passes the time. Not thread-safe.
//
// By itself: the cost of saving equals the work that a lost server costs at an interval of sqrt(2 * cost *
// mean time between losses) (Young 1974). The cost is the whole time that the last checkpoint took, although
// training goes on meanwhile. The schedule assumes one loss a minute: a job that seldom loses a server pays
// little for that, and a job that often does loses only seconds. The interval is at least a second and at
// most a minute, but long enough that checkpoints are being written for a tenth of the time at most.
class CheckpointSchedule {
 public:
  CheckpointSchedule(const v1::CheckpointConfig& config, absl::Time now);

  // `steps`: the job's steps so far.
  bool Due(absl::Time now, uint64_t steps) const;

  // A checkpoint at this many steps has begun.
  void Begun(absl::Time now, uint64_t steps);
  // The checkpoint that has begun is complete.
  void Completed(absl::Time now);
  // The checkpoint failed: the next try comes a little later.
  void Failed(absl::Time now);
  // The job goes back to this many steps.
  void Rewound(absl::Time now, uint64_t steps);

  // The current interval between two checkpoints; infinite if only steps count.
  absl::Duration interval() const;

 private:
  const uint64_t every_steps_;
  const absl::Duration every_;  // zero: by itself, unless steps say when
  absl::Time begun_;
  uint64_t steps_ = 0;  // at the last checkpoint
  absl::Time not_before_;
  absl::Duration took_;
};

// Takes a job's checkpoints, one at a time: has every shard keep its version, makes room in the store, has
// every shard write its part, commits the checkpoint. Training goes on meanwhile, however long the store
// takes. Not thread-safe: all calls come in the coordinator's order, into which the store's answers are
// posted.
class Checkpoints {
 public:
  // What the coordinator puts into a checkpoint.
  struct Snapshot {
    // Names the checkpoint. Above the step of any that exists. In sync it is the state's step where that is
    // so, and may come again if the checkpoint fails.
    uint64_t step = 0;
    // The job's steps so far.
    uint64_t progress = 0;
    // The newest checkpoint holds exactly this state, and says the same of the job's results.
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

  // Whether the job has a store. If not, there is no checkpoint, and none may be asked for.
  bool enabled() const { return enabled_; }
  // The store's state when this coordinator began.
  const JobStore::Opened& opened() const { return opened_; }

  // Answers once the state of this moment is saved; without `of_now`, a checkpoint that is being taken is
  // enough. Unavailable: the checkpoint failed, or none can be taken at present. With `of_now` the caller
  // logs the failure.
  void Request(bool of_now, Done done);
  // Begins a checkpoint if the schedule says so. `progress`: the job's steps so far.
  void TakeIfDue(uint64_t progress);
  // Gives up a checkpoint that takes too long. Call it from time to time.
  void Tick();
  void OnWritten(uint32_t shard, const v1::CheckpointWritten& written);
  // Gives up the current checkpoint, because a shard was lost; not if the store commits it already. Who waits
  // for the next one is answered at once: the job may go back, and the next one would be of another state.
  // `goes_back`: the other shards do, and then report nothing of what they still write.
  void Abandon(const std::string& why, uint32_t lost, bool goes_back);
  // The newest checkpoint's files are damaged or missing, as a shard says (`why`): JobStore::PassOver(). OK:
  // there is another newest checkpoint. Call it while no checkpoint is under way.
  void PassOver(const std::string& why, std::function<void(const absl::Status&)> done);
  // The job goes back to the newest checkpoint, of this many steps, or to its beginning.
  void Rewound(uint64_t steps) { schedule_.Rewound(job_.now(), steps); }

  // A checkpoint is under way, or shards still write their parts of one that has failed.
  bool busy() const { return current_.has_value() || remains_.has_value(); }
  // A checkpoint is under way that may become the newest.
  bool unsettled() const { return current_.has_value() && current_->abandoned.empty(); }
  bool any() const { return newest_.has_value(); }
  const std::optional<v1::CheckpointManifest>& newest() const { return newest_; }
  // sync: the committed steps in the newest checkpoint; 0 without one.
  uint64_t committed_steps() const { return newest_.has_value() ? newest_->job().committed_steps() : 0; }
  // When the newest checkpoint was completed, or found in the store.
  absl::Time newest_since() const { return newest_since_; }
  // Above the steps of all checkpoints that were begun or exist.
  uint64_t next_step() const { return next_step_; }
  std::string FolderOf(uint64_t step) const;
  // The newest checkpoint's folder. Empty: there is none.
  std::string newest_folder() const;
  // What the current checkpoint waits for, for messages. Empty: nothing, or not for long.
  std::string WaitingFor() const;
  // Why the store seems to hang, which cannot be given up on: what it does may take effect later. Empty: it
  // does not.
  std::string StoreHangs() const;
  // JobStore::Reserve(); `done` runs in the coordinator's order.
  void Reserve(const JobStore::Numbers& up_to, std::function<void(const absl::Status&)> done) {
    store_->Reserve(up_to, InOrder(std::move(done)));
  }

  // Answers waiting requests with `why`, and gives the store away. The store's last answers come while it is
  // destroyed, outside of the coordinator's order. Make no request afterwards.
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
  // In a turn of its own, if there are requests in next_.
  void BeginNext();
  // The shards that have yet to write their part of the current checkpoint.
  std::set<uint32_t> Writing() const;
  // The tables' files may have what has changed since the newest checkpoint alone.
  bool MayFollow(const Snapshot& of) const;
  void OnBegun(const absl::Status& status);
  void SetNewest(v1::CheckpointManifest manifest);
  void OnCommitted(const v1::CheckpointManifest& manifest, const absl::Status& status);
  // This shard writes nothing any more of the checkpoint that has failed.
  void EndRemains(uint32_t shard);
  void Fail(const std::string& why);
  // Because of one shard, which writes no more: others may still write, and report that.
  void FailOn(uint32_t shard, const std::string& why);
  // The current checkpoint is over: answers who waits for it, and begins the next one if it was asked for.
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
  // A shard writes one part at a time, and would refuse the next one: it begins when they are done.
  std::optional<Remains> remains_;
  // Requests for the checkpoint after the current one.
  std::vector<Done> next_;
  bool next_urgent_ = false;
  std::optional<v1::CheckpointManifest> newest_;
  // The checkpoints that the newest one builds on.
  uint32_t chain_ = 0;
  absl::Time newest_since_;
  uint64_t next_step_;
  // Checkpoints that were begun.
  uint64_t attempts_ = 0;
};

}  // namespace weir
