#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {

// The source from which the shards of a job are installed: its newest checkpoint; without one, the weights of
// the checkpoint in checkpoint.init_from; without either, version 0.
//
// If a shard finds a checkpoint's files damaged or missing, ps:0 looks for the newest whole checkpoint before
// it. Meanwhile no shard is told to install.
//
// Belongs to the coordinator's queue.
class InstallSource {
 public:
  using Found = std::function<void(absl::StatusOr<uint64_t>)>;
  struct Options {
    // `init_from` and `init_from_before`: as in Coordinator::Options.
    std::optional<uint64_t> init_from;
    std::function<void(uint64_t step, Found found)> init_from_before;
    // The search has ended: shards may be installed.
    std::function<void()> changed;
    // No shard can be installed.
    std::function<void(const absl::Status& failure)> fail;
  };
  // `checkpoints` outlives the object.
  InstallSource(const JobContext& job, Checkpoints& checkpoints, Options options)
      : job_(job), checkpoints_(checkpoints), options_(std::move(options)), init_from_(options_.init_from) {}

  // Whether there is a checkpoint. If not, the shards begin with version 0.
  bool exists() const { return init_from_.has_value() || checkpoints_.any(); }
  void Describe(v1::Install* install) const;

  // This server cannot load its checkpoint. Looks for an earlier one, unless a search is under way.
  void OnDamaged(const std::string& server, const std::string& why);
  // searching(): a search is under way, or has found a checkpoint. found(): a checkpoint was found, and is to
  // be installed once all shards that were told to install before have answered.
  bool searching() const { return search_ != Search::kNone; }
  bool found() const { return search_ == Search::kFound; }
  // The checkpoint that was found is installed now.
  void Take();

 private:
  enum class Search { kNone, kUnderWay, kFound };
  // `what`: the checkpoint that was passed over, for messages. `found` OK: an earlier one takes its place.
  void OnPassedOver(const std::string& what, const std::string& why, const absl::Status& found);

  const JobContext& job_;
  Checkpoints& checkpoints_;
  const Options options_;
  // Options::init_from or, if that checkpoint is damaged, an earlier one.
  std::optional<uint64_t> init_from_;
  Search search_ = Search::kNone;
  // A shard has called a checkpoint damaged that ps:0 finds whole, and loads it once more.
  bool doubted_ = false;
};

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
  // Asks the first of these members, unless a member that was asked is still there or its upload is whole.
  void Ask(const v1::Membership& members);
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
