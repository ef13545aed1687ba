#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/clock.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoint_schedule.h"
#include "ps_server/coordinator/job_store.h"

namespace weir {

// Takes a job's checkpoints, one at a time: makes room in the store, has every shard write its part, commits.
// Not thread-safe: all happens in the coordinator's order, into which it brings the store's answers.
class Checkpoints {
 public:
  // What the coordinator puts into one.
  struct Snapshot {
    // Names it. Above that of any before, but in sync the one of the state, which may come again.
    uint64_t step = 0;
    // Of the job so far.
    uint64_t progress = 0;
    // The newest checkpoint is of this very state.
    bool saved = false;
    uint32_t num_shards = 0;
    v1::Model model;
    v1::CoordinatorState job;
  };
  struct Options {
    v1::CheckpointConfig config;
    std::unique_ptr<JobStore> store;
    const Clock* clock = nullptr;
    // Into the coordinator's order.
    std::function<void(std::function<void()>)> post;
    // As it is now. Or why none can be taken now.
    std::function<absl::StatusOr<Snapshot>()> snapshot;
    // Tells every shard. Between snapshot() and this, in sync, no step is committed (starting()).
    std::function<void(const v1::ControlMessage&)> broadcast;
    // The store belongs to another coordinator now, as the message says.
    std::function<void(const std::string& why)> replaced;
    // Something that others may wait for has changed: starting(), busy(), newest().
    std::function<void()> changed;
  };
  using Done = std::function<void(absl::StatusOr<v1::CheckpointReply>)>;

  explicit Checkpoints(Options options);

  // Answers once the state of this moment is saved; if not `of_now`, one that is being taken will do.
  // Unavailable: it came to nothing, or none can be taken at present. Who wants it `of_now` tells people so
  // himself.
  void Request(bool of_now, Done done);
  // Begins one that is due. `progress`: steps of the job so far.
  void Tick(uint64_t progress);
  void OnWritten(uint32_t shard, const v1::CheckpointWritten& written);
  // A shard was lost: nothing comes of the one that shards are writing.
  void Abandon(const std::string& why);
  // The job goes back to the newest, of this many steps (or to its beginning).
  void Rewound(uint64_t steps) { schedule_.Rewound(options_.clock->Now(), steps); }

  // One is about to be taken of the state at snapshot().
  bool starting() const { return current_.has_value() && current_->phase == Phase::kBeginning; }
  // One is under way.
  bool busy() const { return current_.has_value(); }
  const std::optional<v1::CheckpointManifest>& newest() const { return newest_; }
  // When it was complete; if it was found, when it was.
  absl::Time newest_since() const { return newest_since_; }
  // Above the names of all that were begun or are there.
  uint64_t next_step() const { return next_step_; }
  std::string FolderOf(uint64_t step) const;
  // Of the newest. Empty: there is none.
  std::string newest_folder() const;
  // What is awaited, for people. Empty: nothing worth a word.
  std::string WaitingFor() const;
  const JobStore& store() const { return *options_.store; }
  // As JobStore has it; `done` comes in the coordinator's order.
  void Reserve(const JobStore::Numbers& up_to, std::function<void(const absl::Status&)> done) {
    options_.store->Reserve(up_to, InOrder(std::move(done)));
  }

  // The end: answers what waits. The store's last answers come while the result is being destroyed, outside
  // of the coordinator's order. Nothing may be asked of this object afterwards.
  std::unique_ptr<JobStore> Close(const absl::Status& why);

 private:
  enum class Phase {
    kBeginning,   // the store makes room
    kWriting,     // the shards write
    kCommitting,  // the store commits
  };
  struct Current {
    Phase phase = Phase::kBeginning;
    absl::Time since;
    Snapshot of;
    std::map<uint32_t, v1::CheckpointFile> files;  // by shard
    std::vector<Done> requests;
    // Somebody wants it of_now.
    bool urgent = false;
    // Not empty: nothing is to come of it.
    std::string abandoned;
  };

  // For next_, or because it is due.
  void Begin();
  void OnBegun(const absl::Status& status);
  void OnCommitted(const v1::CheckpointManifest& manifest, const absl::Status& status);
  void Fail(const std::string& why);
  void AnswerAll(std::vector<Done> requests, const absl::StatusOr<v1::CheckpointReply>& reply);
  JobStore::Done InOrder(std::function<void(const absl::Status&)> then);

  Options options_;
  CheckpointSchedule schedule_;
  std::optional<Current> current_;
  // For the one after the current one.
  std::vector<Done> next_;
  bool next_urgent_ = false;
  std::optional<v1::CheckpointManifest> newest_;
  absl::Time newest_since_;
  uint64_t next_step_;
};

}  // namespace weir
