#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "ps_server/coordinator/member_table.h"

namespace weir {

// How a job gets initial values that a worker uploads (ModelSpec::uploaded()): one member after another is
// asked to, until all shards have the whole upload of one. Then these values are saved, if the job has
// checkpoints, and are the job's for good. All or nothing: whatever a member uploaded before it left is void.
// A job that keeps a log of its pushes saves its initial values in any case, since the log follows from them.
//
// Belongs to the coordinator's queue.
class InitialUpload {
 public:
  // No shard has values.
  void Begin() {
    *this = InitialUpload();
    phase_ = Phase::kUploading;
  }

  // The shards have made their values themselves, and these are to be saved before any member comes.
  void BeginSaving() {
    *this = InitialUpload();
    phase_ = Phase::kSaving;
  }

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
  // The member's upload is whole on this shard. True: now on all of so many.
  bool OnStaged(uint32_t shard, uint64_t uploader, size_t shards);

  // Whether it is time to save the values again.
  bool SaveDue(absl::Time now) const { return saving() && now >= next_save_; }
  void OnSave() { next_save_ = absl::InfiniteFuture(); }
  void OnSaveFailed(absl::Time now, absl::string_view why) {
    next_save_ = now + kAgain;
    trouble_ = std::string(why);
  }
  void OnSaved() { phase_ = Phase::kThere; }

  // What is missing, for messages; `task`: the uploader's, if it is a member.
  std::string WaitingFor(const std::string& task) const;

 private:
  static constexpr absl::Duration kAgain = absl::Seconds(1);
  enum class Phase {
    kNone,  // the shards make their values, or have them from a checkpoint
    kUploading,
    kSaving,
    kThere,
  };

  Phase phase_ = Phase::kNone;
  uint64_t uploader_ = 0;
  std::set<uint32_t> staged_;  // by shard
  absl::Time next_save_ = absl::InfiniteFuture();
  // Why they could not be saved the last time.
  std::string trouble_;
};

}  // namespace weir
