#include <algorithm>
#include <array>

#include "ps_server/optimizer/squares.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

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

}  // namespace weir
