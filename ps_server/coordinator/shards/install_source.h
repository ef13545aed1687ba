#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job_context.h"

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

}  // namespace weir
