#include "tests/integration/applied_batches.h"

#include <vector>

#include "common/base/status_macros.h"
#include "common/model/partition.h"

namespace weir {

absl::Status ForEachApplied(const CheckpointReader& reader,
                            const std::function<void(uint32_t shard, uint64_t batch)>& applied) {
  const uint32_t shards = reader.manifest().num_shards();
  const Partition partition(reader.model().elements(), shards);
  for (uint32_t shard = 0; shard < shards; ++shard) {
    std::vector<float> weights(static_cast<size_t>(partition.shard_elements(shard)));
    CheckpointReader::Target target;
    target.weights = absl::MakeSpan(weights);
    WEIR_ASSIGN_OR_RETURN(const v1::ShardState state,
                          reader.LoadShard(reader.model(), shard, shards, target));
    for (const v1::Interval& batches : state.batches()) {
      for (uint64_t batch = batches.begin(); batch < batches.end(); ++batch) applied(shard, batch);
    }
  }
  return absl::OkStatus();
}

}  // namespace weir
