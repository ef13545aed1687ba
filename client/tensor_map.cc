#include "client/tensor_map.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/finite.h"
#include "common/bfloat16.h"
#include "common/value_cursor.h"

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire's floats are copied as they are");

// Elements: some 0.1 ms of one thread's work.
constexpr int64_t kCheckedAtOnce = 1 << 20;

}  // namespace

TensorMap::TensorMap(ModelSpec model, uint32_t shards)
    : model_(std::move(model)), partition_(model_.elements(), shards) {
  int64_t offset = 0;
  for (size_t i = 0; i < model_.tensors.size(); ++i) {
    offsets_.push_back(offset);
    offset += model_.tensors[i].elements();
    by_name_.emplace(model_.tensors[i].name, i);
  }
  offsets_.push_back(offset);
}

template <typename Tensor, typename Pointer>
absl::StatusOr<std::vector<Pointer>> TensorMap::MatchImpl(const std::vector<Tensor>& tensors) const {
  std::vector<Pointer> result(model_.tensors.size(), nullptr);
  for (const Tensor& tensor : tensors) {
    const auto found = by_name_.find(tensor.name);
    if (found == by_name_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no tensor '", tensor.name, "'"));
    }
    const size_t index = found->second;
    if (result[index] != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is given twice"));
    }
    const int64_t elements = offsets_[index + 1] - offsets_[index];
    if (static_cast<int64_t>(tensor.values.size()) != elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' is given with ", tensor.values.size(), " values; its shape [",
          absl::StrJoin(model_.tensors[index].shape, ", "), "] has ", elements));
    }
    result[index] = tensor.values.data();
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (result[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", model_.tensors[i].name,
                                                     "' is missing; all tensors of the model are needed"));
    }
  }
  return result;
}

absl::StatusOr<std::vector<const float*>> TensorMap::Match(const std::vector<ConstTensor>& tensors) const {
  return MatchImpl<ConstTensor, const float*>(tensors);
}

absl::StatusOr<std::vector<float*>> TensorMap::Match(const std::vector<MutableTensor>& tensors) const {
  return MatchImpl<MutableTensor, float*>(tensors);
}

absl::Status TensorMap::CheckFinite(const std::vector<const float*>& tensors, ThreadPool& threads) const {
  const int64_t elements = offsets_.back();
  std::atomic<int64_t> first{elements};
  threads.ParallelFor((elements + kCheckedAtOnce - 1) / kCheckedAtOnce, [&](int64_t part) {
    int64_t at = part * kCheckedAtOnce;
    const int64_t end = std::min(at + kCheckedAtOnce, elements);
    for (size_t tensor = TensorAt(at); at < end && at < first.load(std::memory_order_relaxed); ++tensor) {
      const int64_t n = std::min(end, offsets_[tensor + 1]) - at;
      const int64_t bad = FirstNonFinite(tensors[tensor] + (at - offsets_[tensor]), n);
      at += bad;
      if (bad == n) continue;
      int64_t known = first.load(std::memory_order_relaxed);
      while (at < known && !first.compare_exchange_weak(known, at, std::memory_order_relaxed)) {
      }
      return;
    }
  });
  if (first == elements) return absl::OkStatus();
  const size_t tensor = TensorAt(first);
  const int64_t at = first - offsets_[tensor];
  const float value = tensors[tensor][at];
  return absl::InvalidArgumentError(absl::StrCat(
      model_.tensors[tensor].kind == TensorKind::kParameter ? "the gradient of " : "the new value of ",
      model_.tensors[tensor].name, "[", at, "] is ",
      std::isnan(value) ? "NaN" : (value > 0 ? "Inf" : "-Inf")));
}

size_t TensorMap::TensorAt(int64_t element) const {
  return static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), element) - offsets_.begin()) -
         1;
}

template <typename Run>
void TensorMap::Walk(uint32_t shard, int64_t first, int64_t count, const Run& run) const {
  while (count > 0) {
    const int64_t block = first / partition_.block_size(), in_block = first % partition_.block_size();
    int64_t left = std::min(count, partition_.block_length(shard, block) - in_block);
    int64_t element = partition_.block_start(shard, block) + in_block;
    first += left;
    count -= left;
    size_t tensor = TensorAt(element);
    while (left > 0) {
      const int64_t n = std::min(left, offsets_[tensor + 1] - element);
      run(tensor, element - offsets_[tensor], n);
      element += n;
      left -= n;
      ++tensor;
    }
  }
}

std::vector<absl::Span<const float>> TensorMap::Locate(uint32_t shard, int64_t first, int64_t count,
                                                       const std::vector<const float*>& tensors) const {
  std::vector<absl::Span<const float>> runs;
  Walk(shard, first, count, [&](size_t tensor, int64_t at, int64_t n) {
    const float* const run = tensors[tensor] + at;
    if (!runs.empty() && runs.back().end() == run) {
      // Tensors that lie end to end.
      runs.back() = {runs.back().data(), runs.back().size() + static_cast<size_t>(n)};
    } else {
      runs.push_back({run, static_cast<size_t>(n)});
    }
  });
  return runs;
}

void TensorMap::Scatter(uint32_t shard, int64_t first, int64_t count,
                        absl::Span<const absl::string_view> pieces, v1::Dtype dtype,
                        const std::vector<float*>& tensors) const {
  ValueCursor cursor(pieces, dtype == v1::BF16 ? 2 : sizeof(float));
  Walk(shard, first, count, [&](size_t tensor, int64_t at, int64_t n) {
    for (float* to = tensors[tensor] + at; n > 0;) {
      int64_t got = 0;
      const char* const values = cursor.Take(n, &got);
      if (dtype == v1::BF16) {
        FromBfloat16(values, to, static_cast<size_t>(got));
      } else {
        std::memcpy(to, values, static_cast<size_t>(got) * sizeof(float));
      }
      to += got;
      n -= got;
    }
  });
}

}  // namespace weir
