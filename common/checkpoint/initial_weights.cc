#include "common/checkpoint/initial_weights.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/wire_model.h"

namespace weir {

absl::Status WriteInitialWeights(FileSystem& fs, const std::string& directory, const ModelSpec& model,
                                 absl::Span<const float> weights) {
  constexpr uint64_t kStep = 0, kIncarnation = 1;
  WEIR_RETURN_IF_ERROR(CheckTensorNames(model));
  WEIR_RETURN_IF_ERROR(BeginCheckpoint(fs, directory, kStep));
  ShardSnapshot snapshot;
  snapshot.model = model;
  // One shard's local space is the model's address space.
  snapshot.weights = weights;
  snapshot.state.set_num_shards(1);
  snapshot.state.mutable_version()->set_incarnation(kIncarnation);
  v1::CheckpointManifest manifest;
  manifest.set_step(kStep);
  manifest.set_incarnation(kIncarnation);
  *manifest.mutable_model() = ToProto(model);
  WEIR_ASSIGN_OR_RETURN(*manifest.add_files(), WriteShardFile(fs, directory, kStep, snapshot));
  return CommitCheckpoint(fs, directory, std::move(manifest));
}

}  // namespace weir
