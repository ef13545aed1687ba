#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/sync/mutex.h"
#include "common/sync/thread_pool.h"
#include "common/system/clock.h"
#include "proto/job_config.pb.h"
#include "ps_server/optimizer/groups.h"
#include "ps_server/optimizer/optimizer.h"
#include "ps_server/optimizer/schedule.h"
#include "ps_server/shard/slab_pool.h"
#include "ps_server/shard/version_readers.h"

namespace weir {

// One version of a shard: weights and optimizer slots, immutable once published. Positions are the shard's
// local ones (common/model/partition.h).
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

class VersionBuilder;

// A shard's blocks, and how the next version of them is made: by Update() from whole gradients, or by a
// VersionBuilder from one that is still arriving. Copy on write: a version that a reader holds does not
// change. Memory that nobody reads any more is written again, slots and unread weights in place. How long the
// next version waits for readers is for VersionReaders to say.
//
// One thread at a time, the shard's order; what Lend() and Freeze() give may be let go on any thread, and a
// builder works on a thread of its own, and may keep the store alive for longer than the shard does.
class BlockStore : public std::enable_shared_from_this<BlockStore> {
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
    // Of the weights.
    SlabSource weights_source = AllocateSlab;
    ReaderLimits reader_limits;
    // Outlives the store and all that it has lent.
    const Clock* clock = &Clock::Real();
    // Is called when a reader has let a version go, on its thread, until Retire(). Must not call the store.
    // May be null.
    std::function<void()> on_release;
  };

  // Fills a version whose weights and slots have their initial values, and sets its count.
  using Restore = std::function<absl::Status(const BlockStore& store, ShardVersion& version)>;

  // Makes version 0, or what `restore` makes of it. An error of `restore` is the result.
  static absl::StatusOr<std::shared_ptr<BlockStore>> Create(Options options,
                                                            const Restore& restore = nullptr);
  ~BlockStore();

  uint64_t count() const { return current_->count; }
  // The newest weights, to read.
  std::shared_ptr<const LentVersion> Lend(const Holder& holder = {});
  // Those of a version that is lent, to one more reader.
  std::shared_ptr<const LentVersion> LendAgain(const LentVersion& lent, const Holder& holder);
  VersionReaders& readers() const { return *readers_; }
  // The newest version with its slots, which nobody waits for and which may be held for long: it counts in no
  // limit. One at a time: nullptr, the one before is still held.
  std::shared_ptr<const ShardVersion> Freeze();
  // The store is not used any more: what is being built is overtaken, readers are revoked, and nobody is told
  // of releases.
  void Retire();

  // Makes and publishes the next version: one optimizer step on the mean of `gradients`, weighted by their
  // examples and summed in the order given (float32, element by element: sum over i of (examples_i / total) *
  // g_i); buffers are assigned that mean. Without gradients the next version equals this one. All values are
  // finite.
  void Update(absl::Span<const WeightedGradient> gradients);

  // Starts the next version for a gradient of `holder` that is yet to come. nullptr: one is being made
  // already, or too much memory is held that earlier builds were for.
  std::shared_ptr<VersionBuilder> Build(const Holder& holder = {});
  // How many chunks of it have been applied to the version that is being made. None: there is no such
  // version.
  std::optional<uint64_t> chunks_built() const;
  // Publishes what it made from a whole gradient. False: it was overtaken.
  bool Publish(VersionBuilder& builder);

  // For receiving a gradient. Any thread.
  Slab TakeSlab() { return pool_.Take(); }
  int64_t elements() const { return static_cast<int64_t>(pool_.elements()); }
  // By slot of a version.
  const std::vector<SlotSpec>& slots() const { return optimizer_.slots(); }
  const ModelSpec& model() const { return options_.model; }
  // "dense_0/weight[12]" for a local position.
  std::string Describe(int64_t local) const;
  const Kernels& kernels() const { return *options_.kernels; }

 private:
  friend class VersionBuilder;
  // A stretch of one block that belongs to one tensor.
  struct Run {
    int64_t local;
    int64_t length;
    size_t tensor;
  };
  // What the builder that is at work uses, on its thread.
  struct Building {
    Mutex mutex;
    // The version that it starts from, and the weights that it makes; null: none is at work.
    const ShardVersion* from ABSL_GUARDED_BY(mutex) = nullptr;
    const float* to ABSL_GUARDED_BY(mutex) = nullptr;
  };

  BlockStore(Options options, Partition partition, Optimizer optimizer, LearningRateSchedule schedule,
             std::vector<TensorSettings> settings);
  absl::Status Initialize(const Restore& restore);
  double RateOf(const ShardVersion& from) const;
  // For VersionBuilder, on any thread: it is through with its buffers. Not published: what it made is dead.
  void EndBuild(bool published);
  // Applies gradient values at any address to [run.local, run.local + run.length), from one version to
  // another, which may be the same. read_soon: the new weights of the run are, on this core. False: some
  // value is not finite.
  bool UpdateRun(const Run& run, const ShardVersion& from, const ShardVersion& to, const void* gradient,
                 double rate, bool read_soon) const;
  void MakeCurrent(std::shared_ptr<const ShardVersion> version);

  const Options options_;
  const Partition partition_;
  const Optimizer optimizer_;
  const LearningRateSchedule schedule_;
  const std::vector<TensorSettings> settings_;  // by tensor
  std::vector<std::vector<Run>> runs_;          // by block
  SlabPool pool_, weights_pool_;
  std::shared_ptr<const ShardVersion> current_;
  std::weak_ptr<VersionBuilder> builder_;
  Building building_;
  const std::shared_ptr<VersionReaders> readers_;
};

}  // namespace weir
