#include "ps_server/shard/block_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status_macros.h"

namespace weir {
namespace {

// Elements that are worth a hand-over to another thread.
constexpr int64_t kElementsPerTask = 65536;

}  // namespace

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Create(Options options) {
  WEIR_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(options.optimizer, *options.kernels));
  WEIR_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                        LearningRateSchedule::Create(options.optimizer, options.total_steps));
  WEIR_ASSIGN_OR_RETURN(std::vector<TensorSettings> settings,
                        ResolveGroups(options.optimizer, options.model));
  const Partition partition(options.model.elements(), options.num_shards);
  auto store = std::unique_ptr<BlockStore>(
      new BlockStore(std::move(options), partition, std::move(optimizer), schedule, std::move(settings)));
  store->Initialize();
  return store;
}

BlockStore::BlockStore(Options options, Partition partition, Optimizer optimizer,
                       LearningRateSchedule schedule, std::vector<TensorSettings> settings)
    : options_(std::move(options)),
      partition_(partition),
      optimizer_(std::move(optimizer)),
      schedule_(schedule),
      settings_(std::move(settings)),
      pool_(static_cast<size_t>(partition_.shard_elements(options_.shard))) {}

void BlockStore::Initialize() {
  std::vector<int64_t> ends;  // of the tensors, in the address space
  int64_t end = 0;
  for (const TensorSpec& tensor : options_.model.tensors) ends.push_back(end += tensor.elements());

  auto version = std::make_shared<ShardVersion>();
  version->weights = pool_.Take();
  for (const SlotSpec& slot : optimizer_.slots()) {
    version->slots.push_back(pool_.Take());
    std::fill_n(version->slots.back().get(), pool_.elements(), slot.initial_value);
  }
  runs_.resize(partition_.shard_blocks(options_.shard));
  options_.threads->ParallelFor(static_cast<int64_t>(runs_.size()), [&](int64_t block) {
    int64_t at = partition_.block_start(options_.shard, block);
    const int64_t block_end = at + partition_.block_length(options_.shard, block);
    int64_t local = block * partition_.block_size();
    while (at < block_end) {
      const size_t tensor = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
      const int64_t length = std::min(block_end, ends[tensor]) - at;
      runs_[block].push_back({local, length, tensor});
      const TensorSpec& spec = options_.model.tensors[tensor];
      FillInitialValues(options_.seed, spec, at - (ends[tensor] - spec.elements()),
                        absl::MakeSpan(version->weights.get() + local, length));
      at += length;
      local += length;
    }
  });
  MutexLock lock(mutex_);
  current_ = std::move(version);
}

std::shared_ptr<const ShardVersion> BlockStore::Current() const {
  MutexLock lock(mutex_);
  return current_;
}

void BlockStore::Update(absl::Span<const WeightedGradient> gradients) {
  const std::shared_ptr<const ShardVersion> from = Current();
  auto to = std::make_shared<ShardVersion>();
  to->count = from->count + 1;
  if (gradients.empty()) {
    to->weights = from->weights;
    to->slots = from->slots;
  } else {
    to->weights = pool_.Take();
    for (size_t i = 0; i < from->slots.size(); ++i) to->slots.push_back(pool_.Take());

    const double rate = schedule_.Rate(static_cast<double>(from->count) / options_.pushes_per_step);
    uint64_t total = 0;
    for (const WeightedGradient& g : gradients) total += g.examples;

    const int64_t blocks = static_cast<int64_t>(runs_.size());
    const int64_t blocks_per_task = std::max<int64_t>(1, kElementsPerTask / partition_.block_size());
    options_.threads->ParallelFor((blocks + blocks_per_task - 1) / blocks_per_task, [&](int64_t task) {
      // The mean of one block stays in this core's cache until the optimizer has read it.
      thread_local std::vector<float> mean;
      mean.resize(partition_.block_size());
      for (int64_t b = task * blocks_per_task; b < std::min(blocks, (task + 1) * blocks_per_task); ++b) {
        const int64_t start = b * partition_.block_size();
        const float* gradient = gradients[0].values + start;
        if (gradients.size() > 1) {
          const size_t n = partition_.block_length(options_.shard, b);
          for (size_t i = 0; i < gradients.size(); ++i) {
            const float weight = static_cast<float>(gradients[i].examples) / static_cast<float>(total);
            const float* part = gradients[i].values + start;
            if (i == 0) {
              options_.kernels->scale(mean.data(), weight, part, n);
            } else {
              options_.kernels->accumulate(mean.data(), weight, part, n);
            }
          }
          gradient = mean.data();
        }
        for (const Run& run : runs_[b]) UpdateRun(run, *from, *to, gradient + (run.local - start), rate);
      }
    });
  }
  MutexLock lock(mutex_);
  current_ = std::move(to);
}

void BlockStore::UpdateRun(const Run& run, const ShardVersion& from, ShardVersion& to, const float* gradient,
                           double rate) const {
  const TensorSettings& settings = settings_[run.tensor];
  const bool buffer = options_.model.tensors[run.tensor].kind == TensorKind::kBuffer;
  const size_t bytes = run.length * sizeof(float);
  if (buffer || settings.frozen) {
    std::memcpy(to.weights.get() + run.local, buffer ? gradient : from.weights.get() + run.local, bytes);
    for (size_t i = 0; i < to.slots.size(); ++i) {
      std::memcpy(to.slots[i].get() + run.local, from.slots[i].get() + run.local, bytes);
    }
    return;
  }
  ApplyArgs args;
  args.n = run.length;
  args.weights_in = from.weights.get() + run.local;
  args.weights_out = to.weights.get() + run.local;
  args.gradient = gradient;
  for (size_t i = 0; i < to.slots.size(); ++i) {
    args.slots_in[i] = from.slots[i].get() + run.local;
    args.slots_out[i] = to.slots[i].get() + run.local;
  }
  args.learning_rate = rate * settings.learning_rate_factor;
  args.weight_decay = settings.weight_decay;
  args.t = to.count;
  optimizer_.Apply(args);
}

std::string BlockStore::Describe(int64_t local) const {
  const int64_t block = local / partition_.block_size();
  return options_.model.Describe(partition_.block_start(options_.shard, block) +
                                 local % partition_.block_size());
}

}  // namespace weir
