#include "ps_server/shard/versions/block_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "common/codec/wire_codec.h"
#include "common/optimizer/squares.h"

namespace weir {
namespace {

// Fewer elements are not worth handing to another thread.
constexpr int64_t kElementsPerTask = 65536;

// A shard with more elements is larger than what caches keep from one update to the next.
constexpr size_t kBeyondCaches = 4 << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<BlockStore>> BlockStore::Create(Options options, const Restore& restore) {
  WEIR_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(options.optimizer, *options.kernels));
  WEIR_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                        LearningRateSchedule::Create(options.optimizer.learning_rate(),
                                                     options.optimizer.schedule(), options.total_steps));
  WEIR_ASSIGN_OR_RETURN(std::vector<TensorSettings> settings,
                        ResolveGroups(options.optimizer, options.model));
  const Partition partition(options.model.elements(), options.num_shards);
  auto store = std::shared_ptr<BlockStore>(
      new BlockStore(std::move(options), partition, std::move(optimizer), schedule, std::move(settings)));
  WEIR_RETURN_IF_ERROR(store->Initialize(restore));
  return store;
}

BlockStore::BlockStore(Options options, Partition partition, Optimizer optimizer,
                       LearningRateSchedule schedule, std::vector<TensorSettings> settings)
    : options_(std::move(options)),
      partition_(partition),
      optimizer_(std::move(optimizer)),
      schedule_(schedule),
      settings_(std::move(settings)),
      pool_(static_cast<size_t>(partition_.shard_elements(options_.shard)), AllocateSlab),
      weights_pool_(pool_.elements(), OrOwnMemory(options_.weights_source)),
      readers_(
          std::make_shared<VersionReaders>(options_.clock, options_.reader_limits, options_.on_release)) {}

BlockStore::~BlockStore() { Retire(); }

void BlockStore::Retire() {
  if (const auto builder = builder_.lock(); builder != nullptr) builder->Overtake();
  readers_->Retire();
}

absl::Status BlockStore::Initialize(const Restore& restore) {
  std::vector<int64_t> ends;  // of the tensors, in the address space
  int64_t end = 0;
  for (const TensorSpec& tensor : options_.model.tensors) ends.push_back(end += tensor.elements());

  auto version = std::make_shared<ShardVersion>();
  version->weights = weights_pool_.Take();
  for (size_t slot = 0; slot < slots().size(); ++slot) {
    version->slots.push_back(pool_.Take());
    std::fill_n(version->slots.back().get(), pool_.elements(), 0.0f);
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
  if (restore != nullptr) WEIR_RETURN_IF_ERROR(restore(*this, *version));
  current_ = std::move(version);
  return absl::OkStatus();
}

void BlockStore::SetInitialValues(const float* values) {
  std::copy_n(values, elements(), current_->weights.get());
}

std::shared_ptr<const LentVersion> BlockStore::Lend(const Holder& holder) {
  return readers_->Lend(current_->count, current_->weights, holder);
}

std::shared_ptr<const LentVersion> BlockStore::LendAgain(const LentVersion& lent, const Holder& holder) {
  return readers_->Lend(lent.count, lent.weights, holder);
}

std::shared_ptr<const ShardVersion> BlockStore::Freeze() {
  if (readers_->AnyFrozen()) return nullptr;
  std::set<const float*> memory = {current_->weights.get()};
  for (const Slab& slot : current_->slots) memory.insert(slot.get());
  readers_->Freeze(std::move(memory));
  return std::shared_ptr<const ShardVersion>(new ShardVersion(*current_),
                                             [readers = readers_](const ShardVersion* done) {
                                               delete done;
                                               readers->Thaw();
                                             });
}

double BlockStore::RateOf(const ShardVersion& from) const {
  return schedule_.Rate(static_cast<double>(from.count) / options_.pushes_per_step);
}

void BlockStore::MakeCurrent(std::shared_ptr<const ShardVersion> version) {
  if (current_->weights != version->weights) readers_->Supersede(current_->weights.get());
  current_ = std::move(version);
}

void BlockStore::ForBlocks(absl::FunctionRef<void(int64_t block)> work) const {
  const int64_t blocks = static_cast<int64_t>(runs_.size());
  const int64_t blocks_per_task = std::max<int64_t>(1, kElementsPerTask / partition_.block_size());
  options_.threads->ParallelFor((blocks + blocks_per_task - 1) / blocks_per_task, [&](int64_t task) {
    for (int64_t b = task * blocks_per_task; b < std::min(blocks, (task + 1) * blocks_per_task); ++b) work(b);
  });
}

const float* BlockStore::MeanOf(absl::Span<const WeightedGradient> gradients, int64_t block,
                                float* mean) const {
  const int64_t start = block * partition_.block_size();
  if (gradients.size() == 1) return gradients[0].values + start;
  const size_t n = partition_.block_length(options_.shard, block);
  double total = 0;
  for (const WeightedGradient& g : gradients) total += g.weight;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto weight = static_cast<float>(gradients[i].weight / total);
    const float* part = gradients[i].values + start;
    if (i == 0) {
      options_.kernels->scale(mean, weight, part, n);
    } else {
      options_.kernels->accumulate(mean, weight, part, n);
    }
  }
  return mean;
}

void BlockStore::Update(absl::Span<const WeightedGradient> gradients, const StepFactors& factors) {
  // Overtaking comes first, so that the builder's buffers are free unless it is applying a chunk right now.
  if (const auto builder = builder_.lock(); builder != nullptr) builder->Overtake();
  const std::shared_ptr<const ShardVersion> from = current_;
  auto to = std::make_shared<ShardVersion>(*from);
  ++to->count;
  if (!gradients.empty()) {
    bool building;
    {
      MutexLock lock(building_.mutex);
      building = building_.from == from.get();
    }
    const bool lent = readers_->AreRead(from->weights.get());
    if (lent || building || readers_->IsFrozen(from->weights.get())) to->weights = weights_pool_.Take();
    for (Slab& slot : to->slots) {
      if (building || readers_->IsFrozen(slot.get())) slot = pool_.Take();
    }
    const double rate = RateOf(*from);
    const auto factor = static_cast<float>(factors.gradient);
    ForBlocks([&](int64_t block) {
      // The mean of one block stays in this core's cache until the optimizer has read it.
      thread_local std::vector<float> memory;
      memory.resize(partition_.block_size());
      const float* const mean = MeanOf(gradients, block, memory.data());
      for (const Run& run : runs_[block]) {
        const int64_t at = run.local - block * partition_.block_size();
        const float* gradient = mean + at;
        if (factor != 1 && !IsBuffer(run)) {
          options_.kernels->scale(memory.data() + at, factor, gradient, static_cast<size_t>(run.length));
          gradient = memory.data() + at;
        }
        const double of_tensor = factors.tensors.empty() ? 1 : factors.tensors[run.tensor];
        UpdateRun(run, *from, *to, gradient, rate * of_tensor, /*read_soon=*/false);
      }
    });
  }
  MakeCurrent(std::move(to));
}

StepSquares BlockStore::Measure(absl::Span<const WeightedGradient> gradients, double factor) const {
  Mutex mutex;
  StepSquares total;
  if (gradients.empty()) return total;
  ForBlocks([&](int64_t block) {
    thread_local std::vector<float> memory;
    memory.resize(partition_.block_size());
    const float* const mean = MeanOf(gradients, block, memory.data());
    StepSquares squares;
    for (const Run& run : runs_[block]) {
      if (IsBuffer(run)) continue;
      const float* const values = mean + (run.local - block * partition_.block_size());
      if (factor == 0) {
        AddSquares(*options_.kernels, values, PositionOf(run), static_cast<size_t>(run.length),
                   &squares.gradient);
      } else if (optimizer_.scales_by_norms() && !settings_[run.tensor].frozen) {
        MeasureUpdate(run, values, static_cast<float>(factor), &squares.tensors[run.tensor]);
      }
    }
    MutexLock lock(mutex);
    total.gradient.Add(squares.gradient);
    for (const auto& [tensor, of] : squares.tensors) {
      total.tensors[tensor].weights.Add(of.weights);
      total.tensors[tensor].update.Add(of.update);
    }
  });
  return total;
}

void BlockStore::MeasureUpdate(const Run& run, const float* mean, float factor,
                               StepSquares::OfTensor* squares) const {
  // Parts of the run, which stay in the first-level cache. They end where runs of squares do.
  constexpr int64_t kPart = 1024;
  static_assert(kPart % kSquaresRun == 0);
  std::array<float, kPart> update, scaled;
  std::array<std::array<float, kPart>, kMostSlots> slots;
  Run part = run;
  for (int64_t left = run.length; left > 0; left -= part.length) {
    const int64_t position = PositionOf(part);
    part.length = std::min(left, kPart - position % static_cast<int64_t>(kSquaresRun));
    ApplyArgs args = ArgsOf(part, *current_);
    args.gradient = mean;
    if (factor != 1) {
      options_.kernels->scale(scaled.data(), factor, mean, args.n);
      args.gradient = scaled.data();
    }
    args.weights_out = update.data();
    for (size_t slot = 0; slot < kMostSlots; ++slot) args.slots_out[slot] = slots[slot].data();
    optimizer_.Update(args);
    AddSquares(*options_.kernels, args.weights_in, position, args.n, &squares->weights);
    AddSquares(*options_.kernels, update.data(), position, args.n, &squares->update);
    mean += part.length;
    part.local += part.length;
  }
}

ApplyArgs BlockStore::ArgsOf(const Run& run, const ShardVersion& from) const {
  const TensorSettings& settings = settings_[run.tensor];
  ApplyArgs args;
  args.n = static_cast<size_t>(run.length);
  args.weights_in = from.weights.get() + run.local;
  for (size_t i = 0; i < from.slots.size(); ++i) args.slots_in[i] = from.slots[i].get() + run.local;
  args.weight_decay = settings.weight_decay;
  args.l2 = settings.l2;
  args.clip_weights = settings.clip_weights;
  args.t = from.count + 1;
  return args;
}

bool BlockStore::UpdateRun(const Run& run, const ShardVersion& from, const ShardVersion& to,
                           const void* gradient, double rate, bool read_soon) const {
  const TensorSettings& settings = settings_[run.tensor];
  const bool buffer = IsBuffer(run);
  const size_t n = static_cast<size_t>(run.length);
  if (buffer || settings.frozen) {
    const auto keep = [&](const Slab& in, const Slab& out) {
      if (in != out) std::memcpy(out.get() + run.local, in.get() + run.local, n * sizeof(float));
    };
    for (size_t i = 0; i < to.slots.size(); ++i) keep(from.slots[i], to.slots[i]);
    if (!buffer) {
      keep(from.weights, to.weights);
      return FirstNonFiniteAt(gradient, run.length) == run.length;
    }
    return options_.kernels->assign(to.weights.get() + run.local, gradient, n);
  }
  ApplyArgs args = ArgsOf(run, from);
  args.weights_out = to.weights.get() + run.local;
  args.gradient = gradient;
  for (size_t i = 0; i < to.slots.size(); ++i) args.slots_out[i] = to.slots[i].get() + run.local;
  args.learning_rate = rate * settings.learning_rate_factor;
  if (pool_.elements() > kBeyondCaches) {
    const bool slots_apart = to.slots.empty() || from.slots[0] != to.slots[0];
    const bool weights_apart = from.weights != to.weights;
    if (slots_apart && weights_apart && !read_soon) {
      args.past = PastCaches::kSlotsAndWeights;
    } else if (slots_apart) {
      args.past = PastCaches::kSlots;
    }
  }
  return optimizer_.Apply(args);
}

std::shared_ptr<VersionBuilder> BlockStore::Build(const Holder& holder, double factor) {
  if (!readers_->MayBuild()) return nullptr;
  {
    MutexLock lock(building_.mutex);
    if (building_.from != nullptr) return nullptr;
  }
  auto to = std::make_shared<ShardVersion>();
  to->count = current_->count + 1;
  to->weights = weights_pool_.Take();
  for (size_t i = 0; i < current_->slots.size(); ++i) to->slots.push_back(pool_.Take());
  {
    MutexLock lock(building_.mutex);
    building_.from = current_.get();
    building_.to = to->weights.get();
  }
  std::shared_ptr<VersionBuilder> builder(
      new VersionBuilder(shared_from_this(), RateOf(*current_), factor, current_, to,
                         readers_->Lend(to->count, to->weights, holder, /*making=*/true)));
  builder_ = builder;
  return builder;
}

std::optional<uint64_t> BlockStore::chunks_built() const {
  const std::shared_ptr<VersionBuilder> builder = builder_.lock();
  if (builder == nullptr || builder->version() == nullptr) return std::nullopt;
  return builder->chunks();
}

void BlockStore::EndBuild(bool published) {
  MutexLock lock(building_.mutex);
  if (published) {
    readers_->Publish(building_.to);
  } else {
    readers_->Kill(building_.to);
  }
  building_.from = nullptr;
  building_.to = nullptr;
}

bool BlockStore::Publish(VersionBuilder& builder) {
  std::shared_ptr<const ShardVersion> version = builder.Finish();
  if (version == nullptr) return false;
  MakeCurrent(std::move(version));
  return true;
}

std::string BlockStore::Describe(int64_t local) const {
  return options_.model.Describe(PositionOf({local, 1, 0}));
}

VersionBuilder::~VersionBuilder() {
  MutexLock lock(mutex_);
  Drop(/*published=*/false);
}

std::shared_ptr<const LentVersion> VersionBuilder::version() const {
  MutexLock lock(mutex_);
  return overtaken_ ? nullptr : lent_;
}

std::shared_ptr<const ShardVersion> VersionBuilder::Finish() {
  MutexLock lock(mutex_);
  if (overtaken_) return nullptr;
  std::shared_ptr<const ShardVersion> made = to_;
  Drop(/*published=*/true);
  return made;
}

void VersionBuilder::Overtake() {
  MutexLock lock(mutex_);
  overtaken_ = true;
  if (!applying_) Drop(/*published=*/false);
}

void VersionBuilder::Drop(bool published) {
  if (from_ == nullptr) return;
  store_->EndBuild(published);
  from_ = nullptr;
  to_ = nullptr;
  lent_ = nullptr;
}

std::optional<NonFinite> VersionBuilder::Apply(int64_t first, int64_t count,
                                               absl::Span<const absl::string_view> pieces, WireType type) {
  std::shared_ptr<const ShardVersion> from, to;
  {
    MutexLock lock(mutex_);
    if (overtaken_) return std::nullopt;
    applying_ = true;
    from = from_;
    to = to_;
  }
  const int64_t block_size = store_->partition_.block_size();
  const int64_t begin = first / block_size, end = (first + count + block_size - 1) / block_size;
  std::optional<NonFinite> bad;
  if (EncodedBytes(type, static_cast<uint64_t>(count)) <= kMaxChunkBytes) {
    ValueCursor gradient(pieces, type, count);
    bad = ApplyBlocks(begin, end, gradient, *from, *to, /*read_soon=*/true);
  } else {
    // Each task applies the blocks of one chunk unit of the wire. The lowest bad position wins, whichever
    // task finds it.
    const int64_t blocks = kChunkUnit / block_size, tasks = (end - begin + blocks - 1) / blocks;
    std::vector<std::optional<NonFinite>> found(static_cast<size_t>(tasks));
    store_->options_.threads->ParallelFor(tasks, [&](int64_t task) {
      const int64_t at = begin + task * blocks;
      ValueCursor rest(pieces, type, count);
      rest.Skip(task * kChunkUnit);
      found[static_cast<size_t>(task)] =
          ApplyBlocks(at, std::min(at + blocks, end), rest, *from, *to, /*read_soon=*/false);
    });
    for (size_t i = 0; i < found.size() && !bad.has_value(); ++i) bad = found[i];
  }
  from = nullptr;
  chunks_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  applying_ = false;
  if (overtaken_) Drop(/*published=*/false);
  return bad;
}

std::optional<NonFinite> VersionBuilder::ApplyBlocks(int64_t begin, int64_t end, ValueCursor& gradient,
                                                     const ShardVersion& from, const ShardVersion& to,
                                                     bool read_soon) const {
  std::optional<NonFinite> bad;
  std::array<float, ValueCursor::kStretch> converted;
  const auto update = [&](const BlockStore::Run& run, const void* values) {
    if (store_->UpdateRun(run, from, to, values, rate_, read_soon) || bad.has_value()) return;
    // The value is for the message only: a peer that shares the memory may have changed it since.
    const int64_t at = FirstNonFiniteAt(values, run.length);
    bad = NonFinite{run.local + (at < run.length ? at : 0), 0};
    if (at == run.length) return;
    std::memcpy(&bad->value, static_cast<const char*>(values) + static_cast<size_t>(at) * sizeof(float),
                sizeof(float));
  };
  for (int64_t block = begin; block < end; ++block) {
    for (BlockStore::Run run : store_->runs_[static_cast<size_t>(block)]) {
      for (const int64_t last = run.local + run.length; run.local < last; run.local += run.length) {
        const bool scales = factor_ != 1 && !store_->IsBuffer(run);
        const int64_t wanted = last - run.local;
        const void* values = gradient.Take(scales ? std::min(wanted, ValueCursor::kStretch) : wanted,
                                           converted.data(), &run.length);
        if (scales) {
          store_->options_.kernels->scale(converted.data(), factor_, values, static_cast<size_t>(run.length));
          values = converted.data();
        }
        update(run, values);
      }
    }
  }
  return bad;
}

}  // namespace weir
