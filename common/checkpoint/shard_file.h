#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// The ShardState in the header of a shard's file, and how states are merged when the number of shards
// changes. Pure functions.

// The key in the file's metadata.
constexpr const char kStateKey[] = "weir.state";

// InvalidArgument: shard or workers out of order or range, intervals empty, out of order or touching.
absl::Status CheckShardState(const v1::ShardState& state);
std::string EncodeShardState(const v1::ShardState& state);
// InvalidArgument names `source`.
absl::StatusOr<v1::ShardState> ParseShardState(const std::string& text, const std::string& source);

// The state of one of `num_shards` new shards, whose elements come from all old ones. `old`: all old states.
//
// In sync all old shards are at one step, so there is nothing to decide. Otherwise each had its own clocks,
// and a push may be part of some of the new shard's elements and not of others. The push must not be applied
// twice to any element, so a push that any old shard has counts as applied:
//   next_clock   of each worker, the highest that any old shard has of its newest incarnation
//   lost         the clocks from the lowest (0 where an old shard does not know this incarnation) to the
//                highest: some elements may lack them. They count as delivered, and are to be reported
//   batches      the union
//   version      the highest count, so that schedules never go back; Adam's t of some elements is rounded up
//                to it
//   answers      none: they name versions of shards that no longer exist. The workers whose pushes they
//                answer are those of a job that was stopped
// So a push counts at most once everywhere, and a push whose clock is not below next_clock on any shard is
// whole.
v1::ShardState MergeShardStates(const std::vector<v1::ShardState>& old, uint32_t shard, uint32_t num_shards);

// The layout of a shard's file. A shard's local space (common/model/partition.h) holds its elements by rising
// address, so the shard's elements of one tensor are one stretch of that space, and the stretches follow one
// another in the model's order. Pure functions.

// A stretch of a shard's local space.
struct LocalRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
};

// The tensors of a shard's file, in their order: for the weights and then each slot, each tensor of the model
// of which the shard has elements, with one dimension.
struct ShardTensor {
  // 0: the weights; i: slot i - 1.
  size_t array = 0;
  LocalRange range;
  StoredTensor stored;
};
std::vector<ShardTensor> TensorsOfShard(const ModelSpec& model, const Partition& partition, uint32_t shard,
                                        const std::vector<std::string>& slots);
// As the file has them.
std::vector<StoredTensor> StoredOf(const std::vector<ShardTensor>& tensors);

// Calls visit(local, other_local, length), by rising position, for each stretch of `range` of shard `shard`
// that shard `other_shard` of another partition of the same elements has, too.
void ForEachShared(const Partition& partition, uint32_t shard, LocalRange range, const Partition& other,
                   uint32_t other_shard,
                   const std::function<void(int64_t local, int64_t other_local, int64_t length)>& visit);

// A shard's file whose length and header are those that the manifest records.
class ShardFile {
 public:
  // `record`: of a manifest that was checked; outlives the file. `tensors`: TensorsOfShard().
  static absl::StatusOr<ShardFile> Open(FileSystem& fs, const std::string& folder,
                                        const v1::CheckpointFile& record, std::vector<ShardTensor> tensors);

  uint32_t shard() const { return record_->shard(); }
  const std::vector<ShardTensor>& tensors() const { return tensors_; }
  const v1::ShardState& state() const { return state_; }

  // Hands out a tensor's values in pieces, each with the local position of its first value. The values are
  // known to be right only when this has returned OK.
  absl::Status Read(size_t tensor,
                    const std::function<void(int64_t local, absl::Span<const float>)>& take) const;

 private:
  ShardFile(std::string path, const v1::CheckpointFile& record, std::vector<ShardTensor> tensors)
      : path_(std::move(path)), record_(&record), tensors_(std::move(tensors)) {}
  absl::Status CheckHeader();

  std::string path_;
  const v1::CheckpointFile* record_;
  std::vector<ShardTensor> tensors_;
  std::unique_ptr<ReadableFile> file_;
  v1::ShardState state_;
};

}  // namespace weir
