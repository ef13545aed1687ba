#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model_spec.h"
#include "common/partition.h"
#include "common/thread_pool.h"
#include "proto/job_config.pb.h"
#include "ps_server/optimizer/groups.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/optimizer/schedule.h"
#include "ps_server/shard/slab_pool.h"

namespace weir {

// One version of a shard: weights and optimizer slots, immutable once published. Positions are the shard's
// local ones (common/partition.h).
struct ShardVersion {
  uint64_t count = 0;  // updates since version 0
  Slab weights;
  std::vector<Slab> slots;
};

// A gradient of the whole shard and its weight in the mean.
struct WeightedGradient {
  const float* values = nullptr;
  uint64_t examples = 1;
};

// A shard's blocks and how an update makes the next version of them: copy on write, so that who holds a
// version can read it for as long as it likes. Update() is called by one thread at a time; Current() by any.
class BlockStore {
 public:
  struct Options {
    ModelSpec model;
    uint32_t shard = 0;
    uint32_t num_shards = 1;
    uint64_t seed = 1;
    v1::OptimizerConfig optimizer;
    // For the schedule: steps of the job.
    uint64_t total_steps = 1;
    // What divides the version in the schedule's argument: 1 in sync, else the configured workers.
    uint32_t pushes_per_step = 1;
    const Kernels* kernels = nullptr;
    // Outlives the store.
    ThreadPool* threads = nullptr;
  };

  // Makes version 0.
  static absl::StatusOr<std::unique_ptr<BlockStore>> Create(Options options);

  std::shared_ptr<const ShardVersion> Current() const;

  // Makes and publishes the next version: one optimizer step on the mean of `gradients`, weighted by their
  // examples and summed in the order given (float32, element by element: sum over i of (examples_i / total) *
  // g_i); buffers are assigned that mean. Without gradients the next version equals this one.
  void Update(absl::Span<const WeightedGradient> gradients);

  // For receiving a gradient.
  Slab TakeSlab() { return pool_.Take(); }
  int64_t elements() const { return static_cast<int64_t>(pool_.elements()); }
  const ModelSpec& model() const { return options_.model; }
  // "dense_0/weight[12]" for a local position.
  std::string Describe(int64_t local) const;
  const Kernels& kernels() const { return *options_.kernels; }

 private:
  // A stretch of one block that belongs to one tensor.
  struct Run {
    int64_t local;
    int64_t length;
    size_t tensor;
  };

  BlockStore(Options options, Partition partition, Optimizer optimizer, LearningRateSchedule schedule,
             std::vector<TensorSettings> settings);
  void Initialize();
  void UpdateRun(const Run& run, const ShardVersion& from, ShardVersion& to, const float* gradient,
                 double rate) const;

  const Options options_;
  const Partition partition_;
  const Optimizer optimizer_;
  const LearningRateSchedule schedule_;
  const std::vector<TensorSettings> settings_;  // by tensor
  std::vector<std::vector<Run>> runs_;          // by block
  SlabPool pool_;
  mutable Mutex mutex_;
  std::shared_ptr<const ShardVersion> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
