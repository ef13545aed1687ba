#include "client/tensor_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire's floats are copied as they are");

// Of up to n values; `n` if all are finite.
int64_t FirstNonFinite(const float* values, int64_t n) {
  // Blocks of a fixed size, so that the compiler vectorises the loop over one.
  constexpr int64_t kBlock = 256;
  constexpr uint32_t kExponent = 0x7f800000;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    uint32_t bits[kBlock];
    std::memcpy(bits, values + i, sizeof bits);
    uint32_t bad = 0;
    for (int64_t j = 0; j < kBlock; ++j) bad |= static_cast<uint32_t>((bits[j] & kExponent) == kExponent);
    if (bad != 0) break;
  }
  while (i < n && std::isfinite(values[i])) ++i;
  return i;
}

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

absl::Status TensorMap::CheckFinite(const std::vector<const float*>& tensors) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t n = offsets_[i + 1] - offsets_[i];
    const int64_t bad = FirstNonFinite(tensors[i], n);
    if (bad == n) continue;
    const float value = tensors[i][bad];
    return absl::InvalidArgumentError(absl::StrCat(
        model_.tensors[i].kind == TensorKind::kParameter ? "the gradient of " : "the new value of ",
        model_.tensors[i].name, "[", bad, "] is ", std::isnan(value) ? "NaN" : (value > 0 ? "Inf" : "-Inf")));
  }
  return absl::OkStatus();
}

template <typename Run>
void TensorMap::Walk(uint32_t shard, int64_t first, int64_t count, const Run& run) const {
  while (count > 0) {
    const int64_t block = first / partition_.block_size(), in_block = first % partition_.block_size();
    int64_t left = std::min(count, partition_.block_length(shard, block) - in_block);
    int64_t element = partition_.block_start(shard, block) + in_block;
    first += left;
    count -= left;
    size_t tensor =
        static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), element) - offsets_.begin()) -
        1;
    while (left > 0) {
      const int64_t n = std::min(left, offsets_[tensor + 1] - element);
      run(tensor, element - offsets_[tensor], n);
      element += n;
      left -= n;
      ++tensor;
    }
  }
}

void TensorMap::Gather(uint32_t shard, int64_t first, int64_t count, const std::vector<const float*>& tensors,
                       char* bytes) const {
  Walk(shard, first, count, [&](size_t tensor, int64_t at, int64_t n) {
    const size_t size = static_cast<size_t>(n) * sizeof(float);
    std::memcpy(bytes, tensors[tensor] + at, size);
    bytes += size;
  });
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
                        absl::Span<const absl::string_view> pieces,
                        const std::vector<float*>& tensors) const {
  size_t piece = 0, offset = 0;
  Walk(shard, first, count, [&](size_t tensor, int64_t at, int64_t n) {
    char* to = reinterpret_cast<char*>(tensors[tensor] + at);
    for (size_t left = static_cast<size_t>(n) * sizeof(float); left > 0;) {
      const size_t size = std::min(left, pieces[piece].size() - offset);
      std::memcpy(to, pieces[piece].data() + offset, size);
      to += size;
      left -= size;
      offset += size;
      if (offset == pieces[piece].size()) {
        ++piece;
        offset = 0;
      }
    }
  });
}

}  // namespace weir
