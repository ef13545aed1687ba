#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job_context.h"
#include "ps_server/coordinator/members/member_table.h"

namespace weir {

// Gets the initial values of a job whose worker uploads them (ModelSpec::uploaded()). Asks one member after
// another, until all shards have the whole upload of one member. If a member leaves before that, all that it
// uploaded is void. If the job has checkpoints, the values are then saved. From then on they are the job's.
// If the job keeps a log, it also saves initial values that the servers made, since the log follows from
// them.
//
// Belongs to the coordinator's queue.
class InitialUpload {
 public:
  // All shards have the values, which are saved if the job has checkpoints. `uploaded`: by a member.
  using There = std::function<void(bool uploaded)>;
  // `checkpoints` outlives the object.
  InitialUpload(const JobContext& job, Checkpoints& checkpoints, There there)
      : job_(job), checkpoints_(checkpoints), there_(std::move(there)) {}

  // The shards are installed and have no values.
  void Begin() { Start(Phase::kUploading); }
  // The shards have made their values themselves. Saves these before any member comes.
  void BeginSaving() {
    Start(Phase::kSaving);
    Save();
  }
  // The job goes back to its beginning.
  void Forget() { Start(Phase::kNone); }

  // awaited(): the values are not there yet. saving(): they are whole on every shard, and are being saved.
  bool awaited() const { return phase_ == Phase::kUploading || saving(); }
  bool saving() const { return phase_ == Phase::kSaving; }
  bool precedes_members() const { return saving() && uploader_ == 0; }

  // The incarnation of the member that uploads or has uploaded. 0: no member was asked yet.
  uint64_t uploader() const { return uploader_; }
  // The uploader, once its values are the job's; else 0.
  uint64_t values_of() const { return phase_ == Phase::kThere ? uploader_ : 0; }
  // Asks the member of the lowest rank, unless a member that was asked is still there or its upload is whole.
  void Ask(const std::map<uint32_t, MemberTable::Worker>& workers);
  // The upload is whole on this shard, one of `shards`. Saves the values once it is whole on all.
  void OnStaged(uint32_t shard, uint64_t uploader, size_t shards);
  // Saves the values again if they could not be saved. Call it from time to time.
  void Tick();

  // Says for messages what is missing. `task`: the uploader's, if it is a member.
  std::string WaitingFor(const std::string& task) const;

 private:
  enum class Phase {
    kNone,  // the shards make their values, or have them from a checkpoint
    kUploading,
    kSaving,
    kThere,
  };

  void Start(Phase phase);
  void Save();
  void OnSaved();

  const JobContext& job_;
  Checkpoints& checkpoints_;
  const There there_;
  Phase phase_ = Phase::kNone;
  uint64_t uploader_ = 0;
  std::set<uint32_t> staged_;  // by shard
  absl::Time next_save_ = absl::InfiniteFuture();
  // Why the last try to save the values failed.
  std::string trouble_;
};

}  // namespace weir
