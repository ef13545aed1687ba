#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/exact_sum.h"
#include "common/codec/value_codec.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/optimizer/optimizer.h"
#include "common/optimizer/schedule.h"
#include "common/system/clock.h"
#include "common/system/float_pool.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard/versions/version_readers.h"

namespace weir {

// One version of a shard: weights and optimizer slots, immutable once published. Positions are the shard's
// local ones (common/model/partition.h).
struct ShardVersion {
  uint64_t count = 0;  // updates since version 0
  Slab weights;
  std::vector<Slab> slots;
};

// A gradient of the whole shard, and its weight in the mean.
struct WeightedGradient {
  const float* values = nullptr;
  double weight = 1;
};

// The factors of an update that follow from norms over all shards (v1::CommitStep).
struct StepFactors {
  // Of the mean gradient, but for buffers.
  double gradient = 1;
  // Of the learning rate, by tensor. Empty: 1 for each.
  std::vector<double> tensors;
};

// The sums of squares from which norms over all shards are made (v1::StepMeasured).
struct StepSquares {
  struct OfTensor {
    ExactSum weights, update;
  };
  ExactSum gradient;
  std::map<size_t, OfTensor> tensors;
};

class VersionBuilder;

// A shard's blocks. Update() makes the next version of them from whole gradients, and a VersionBuilder makes
// it from a gradient that is still arriving. Copy on write: a version that a reader holds does not change.
// Memory without readers is reused; slots and unread weights are updated in place. VersionReaders decides how
// long the next version waits for readers.
//
// One thread at a time uses the store, in the shard's order. Any thread may release what Lend() and Freeze()
// return. A builder works on a thread of its own, and may keep the store alive longer than the shard does.
class BlockStore : public std::enable_shared_from_this<BlockStore> {
 public:
  struct Options {
    ModelSpec model;
    uint32_t shard = 0;
    uint32_t num_shards = 1;
    uint64_t seed = 1;
    v1::OptimizerConfig optimizer;
    // The steps of the job, for the schedule of the learning rate.
    uint64_t total_steps = 1;
    // Divides the version in the schedule's argument: 1 in sync, otherwise the configured workers.
    uint32_t pushes_per_step = 1;
    const Kernels* kernels = nullptr;
    // Outlives the store.
    ThreadPool* threads = nullptr;
    SlabSource weights_source = AllocateSlab;
    ReaderLimits reader_limits;
    // Outlives the store and all that it has lent.
    const Clock* clock = &Clock::Real();
    // Called on a reader's thread when the reader has released a version, until Retire(). Must not call the
    // store. May be null.
    std::function<void()> on_release;
  };

  // Overwrites the weights and slots of a version, which have their initial values, and sets its count.
  using Restore = std::function<absl::Status(const BlockStore& store, ShardVersion& version)>;

  // Makes version 0, or the version that `restore` fills. Returns an error of `restore`.
  static absl::StatusOr<std::shared_ptr<BlockStore>> Create(Options options,
                                                            const Restore& restore = nullptr);
  ~BlockStore();

  // Gives version 0, which has had no reader yet, these weights: elements() values.
  void SetInitialValues(const float* values);

  uint64_t count() const { return current_->count; }
  // Lends the newest weights to a reader.
  std::shared_ptr<const LentVersion> Lend(const Holder& holder = {});
  // Lends the weights of a lent version to one more reader.
  std::shared_ptr<const LentVersion> LendAgain(const LentVersion& lent, const Holder& holder);
  VersionReaders& readers() const { return *readers_; }
  // Returns the newest version with its slots. The caller may hold it for long: no update waits for it, and
  // it counts in no limit. nullptr: the previous frozen version is still held.
  std::shared_ptr<const ShardVersion> Freeze();
  // The store is no longer used: overtakes a build, revokes the readers, and no longer reports releases.
  void Retire();

  // Makes and publishes the next version: one optimizer step on the mean of `gradients`, weighted by their
  // examples. The mean is summed in the given order, in float32, element by element: the sum over i of
  // (examples_i / total) * g_i. Buffers are assigned that mean. Without gradients the next version equals the
  // current one. All values must be finite.
  void Update(absl::Span<const WeightedGradient> gradients, const StepFactors& factors = {});

  // Measures this shard's part of an update by the mean, but for buffers: the mean itself (`factor` 0), or by
  // tensor the weights, and what the optimizer "lamb" makes of the mean times `factor`. Gradients as in
  // Update(). Frozen tensors have no update.
  StepSquares Measure(absl::Span<const WeightedGradient> gradients, double factor) const;

  // Starts the next version, for a gradient of `holder` that has not arrived yet; `factor` multiplies it, but
  // for buffers. nullptr: a build is in progress already, or readers hold too many versions of builds that
  // were abandoned.
  std::shared_ptr<VersionBuilder> Build(const Holder& holder = {}, double factor = 1);
  // The number of chunks that were applied to the version in progress. nullopt: there is none.
  std::optional<uint64_t> chunks_built() const;
  // Publishes the builder's version, made from a whole gradient. Returns false if the builder was overtaken.
  bool Publish(VersionBuilder& builder);

  // Memory for a gradient that arrives. Any thread.
  Slab TakeSlab() { return pool_.Take(); }
  int64_t elements() const { return static_cast<int64_t>(pool_.elements()); }
  // In the order of ShardVersion::slots.
  const std::vector<const char*>& slots() const { return optimizer_.slots(); }
  const ModelSpec& model() const { return options_.model; }
  // "dense_0/weight[12]" for a local position.
  std::string Describe(int64_t local) const;

 private:
  friend class VersionBuilder;
  // A contiguous part of one block that belongs to one tensor.
  struct Run {
    int64_t local;
    int64_t length;
    size_t tensor;
  };
  // The memory that the active builder uses, on its thread.
  struct Building {
    Mutex mutex;
    // The version from which the builder starts, and the weights that it makes. Null: no builder is active.
    const ShardVersion* from ABSL_GUARDED_BY(mutex) = nullptr;
    const float* to ABSL_GUARDED_BY(mutex) = nullptr;
  };

  BlockStore(Options options, Partition partition, Optimizer optimizer, LearningRateSchedule schedule,
             std::vector<TensorSettings> settings);
  absl::Status Initialize(const Restore& restore);
  double RateOf(const ShardVersion& from) const;
  bool IsBuffer(const Run& run) const {
    return options_.model.tensors[run.tensor].kind == TensorKind::kBuffer;
  }
  // The position of a run in the model's address space.
  int64_t PositionOf(const Run& run) const {
    return partition_.block_start(options_.shard, run.local / partition_.block_size()) +
           run.local % partition_.block_size();
  }
  // Calls `work` for each block on the store's threads, which share the blocks.
  void ForBlocks(absl::FunctionRef<void(int64_t block)> work) const;
  // The mean of a block's gradients: in `mean`, which has room for a block, or, if there is one gradient,
  // where this lies.
  const float* MeanOf(absl::Span<const WeightedGradient> gradients, int64_t block, float* mean) const;
  // The inputs of the optimizer for a run, but for its gradient and its learning rate.
  ApplyArgs ArgsOf(const Run& run, const ShardVersion& from) const;
  // Measure() for a run, whose mean this is.
  void MeasureUpdate(const Run& run, const float* mean, float factor, StepSquares::OfTensor* squares) const;
  // VersionBuilder calls this on any thread when it no longer uses its buffers. If its version is not
  // `published`, the version is dead.
  void EndBuild(bool published);
  // Applies the gradient values at `gradient`, any address, to [run.local, run.local + run.length) of `from`,
  // and writes the result to `to`, which may be `from`. `read_soon`: this core reads the run's new weights
  // soon. Returns false if some value is not finite.
  bool UpdateRun(const Run& run, const ShardVersion& from, const ShardVersion& to, const void* gradient,
                 double rate, bool read_soon) const;
  void MakeCurrent(std::shared_ptr<const ShardVersion> version);

  const Options options_;
  const Partition partition_;
  const Optimizer optimizer_;
  const LearningRateSchedule schedule_;
  const std::vector<TensorSettings> settings_;  // by tensor
  std::vector<std::vector<Run>> runs_;          // by block
  FloatPool<> pool_, weights_pool_;
  std::shared_ptr<const ShardVersion> current_;
  std::weak_ptr<VersionBuilder> builder_;
  Building building_;
  const std::shared_ptr<VersionReaders> readers_;
};

// A NaN or an infinity in a gradient. The value is read a second time for the message. If a peer shares the
// memory, the value may have become finite by then.
struct NonFinite {
  int64_t at;  // local position
  float value;
};

// Makes the next version of a shard from a gradient that is still arriving, chunk by chunk, in buffers that
// no other code sees. BlockStore::Build() creates a builder, BlockStore::Publish() makes its version the
// current one. A builder that is destroyed before that leaves no trace. If another version is published
// first, the builder is overtaken: its work is discarded and its buffers are released.
//
// One thread at a time passes chunks, while another thread may use the store.
class VersionBuilder {
 public:
  ~VersionBuilder();

  // Applies `count` gradient values to the elements from local position `first` on; this range starts and
  // ends at borders of blocks. The values lie in pieces of any length and alignment, and each value is read
  // once. Returns the first value that is NaN or infinite. nullopt: there is none, or it was overtaken.
  //
  // A chunk that fits in a message is in the caller's cache, so the calling thread applies it alone. All of
  // the store's threads apply a larger chunk, which no core has in its cache.
  std::optional<NonFinite> Apply(int64_t first, int64_t count, absl::Span<const absl::string_view> pieces,
                                 WireType type);

  // The version so far. Its weights are valid wherever a chunk was applied. nullptr: overtaken.
  std::shared_ptr<const LentVersion> version() const;
  // The number of chunks that were applied. Any thread.
  uint64_t chunks() const { return chunks_.load(std::memory_order_relaxed); }

 private:
  friend class BlockStore;
  VersionBuilder(std::shared_ptr<BlockStore> store, double rate, double factor,
                 std::shared_ptr<const ShardVersion> from, std::shared_ptr<const ShardVersion> to,
                 std::shared_ptr<const LentVersion> lent)
      : store_(std::move(store)),
        rate_(rate),
        factor_(static_cast<float>(factor)),
        from_(std::move(from)),
        to_(std::move(to)),
        lent_(std::move(lent)) {}
  // As Apply(), for the blocks [begin, end) of the version in progress.
  std::optional<NonFinite> ApplyBlocks(int64_t begin, int64_t end, ValueCursor& gradient,
                                       const ShardVersion& from, const ShardVersion& to,
                                       bool read_soon) const;
  // Returns the finished version, with its slots, and drops this object's references. nullptr: overtaken.
  std::shared_ptr<const ShardVersion> Finish();
  void Overtake();
  void Drop(bool published) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<BlockStore> store_;
  const double rate_;
  const float factor_;  // of the gradient
  std::atomic<uint64_t> chunks_{0};
  mutable Mutex mutex_;
  bool applying_ ABSL_GUARDED_BY(mutex_) = false;
  bool overtaken_ ABSL_GUARDED_BY(mutex_) = false;
  // Null once dropped.
  std::shared_ptr<const ShardVersion> from_ ABSL_GUARDED_BY(mutex_), to_ ABSL_GUARDED_BY(mutex_);
  // `to_` in the form that readers get.
  std::shared_ptr<const LentVersion> lent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
