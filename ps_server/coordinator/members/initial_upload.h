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

// How a job gets initial values that a worker uploads (ModelSpec::uploaded()): one member after another is
// asked to, until all shards have the whole upload of one. Then these values are saved, if the job has
// checkpoints, and are the job's for good. All or nothing: whatever a member uploaded before it left is void.
// A job that keeps a log of its pushes saves its initial values in any case, since the log follows from them.
//
// Belongs to the coordinator's queue.
class InitialUpload {
 public:
  // All shards have the values, and these are saved if the job has checkpoints. `uploaded`: by a member.
  using There = std::function<void(bool uploaded)>;
  // `checkpoints` outlives the object.
  InitialUpload(const JobContext& job, Checkpoints& checkpoints, There there)
      : job_(job), checkpoints_(checkpoints), there_(std::move(there)) {}

  // No shard has values.
  void Begin() { Start(Phase::kUploading); }
  // The shards have made their values themselves, and these are to be saved before any member comes.
  void BeginSaving() {
    Start(Phase::kSaving);
    Save();
  }
  // The job goes back to its beginning.
  void Forget() { Start(Phase::kNone); }

  // The values are not there yet. saving(): they are whole on every shard.
  bool awaited() const { return phase_ == Phase::kUploading || saving(); }
  bool saving() const { return phase_ == Phase::kSaving; }
  bool precedes_members() const { return saving() && uploader_ == 0; }

  // The incarnation of the member that uploads, or has; 0: none was asked yet.
  uint64_t uploader() const { return uploader_; }
  // The same if its values are the job's; else 0.
  uint64_t values_of() const { return phase_ == Phase::kThere ? uploader_ : 0; }
  // Asks the member of the lowest rank, unless one that was asked is still a member, or its upload is whole.
  void Ask(const std::map<uint32_t, MemberTable::Worker>& workers);
  // The member's upload is whole on this shard, one of so many. Saves the values once it is whole on all.
  void OnStaged(uint32_t shard, uint64_t uploader, size_t shards);
  // Saves the values again if they could not be saved. Call it from time to time.
  void Tick();

  // What is missing, for messages; `task`: the uploader's, if it is a member.
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
  // Why they could not be saved the last time.
  std::string trouble_;
};

}  // namespace weir
