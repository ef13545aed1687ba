#include "client/tensors/tensor_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire's floats are copied as they are");

const float* Floats(const GradientTensors& tensors, size_t tensor) {
  return static_cast<const float*>(tensors.begin[tensor]);
}
const uint16_t* Bfloat16s(const GradientTensors& tensors, size_t tensor) {
  return static_cast<const uint16_t*>(tensors.begin[tensor]);
}

// The index of the first value that is not finite, or would not be in `dtype`, among the n values of the
// tensor from position `at` on; n: there is none.
int64_t FirstRefused(const GradientTensors& tensors, size_t tensor, int64_t at, int64_t n, v1::Dtype dtype) {
  if (tensors.dtype == v1::BF16) return FirstNonFinite(Bfloat16s(tensors, tensor) + at, n);
  const float* const values = Floats(tensors, tensor) + at;
  return FirstNonFinite(dtype, values, n);
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

template <typename Pointer, typename Tensor, typename Values>
absl::StatusOr<std::vector<Pointer>> TensorMap::MatchImpl(const std::vector<Tensor>& tensors,
                                                          const Values& values) const {
  std::vector<Pointer> result(model_.tensors.size(), nullptr);
  // The next tensor's position if the tensors come in the model's order, as they mostly do. Otherwise a
  // look-up finds it.
  size_t index = 0;
  for (const Tensor& tensor : tensors) {
    if (index == model_.tensors.size() || model_.tensors[index].name != tensor.name) {
      const auto found = by_name_.find(tensor.name);
      if (found == by_name_.end()) {
        return absl::InvalidArgumentError(absl::StrCat("the model has no tensor '", tensor.name, "'"));
      }
      index = found->second;
    }
    if (result[index] != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is given twice"));
    }
    const int64_t elements = offsets_[index + 1] - offsets_[index];
    const auto memory = values(tensor);
    if (static_cast<int64_t>(memory.size()) != elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name, "' is given with ", memory.size(), " values; its shape [",
                       absl::StrJoin(model_.tensors[index].shape, ", "), "] has ", elements));
    }
    result[index++] = memory.data();
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (result[i] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", model_.tensors[i].name,
                                                     "' is missing; all tensors of the model are needed"));
    }
  }
  return result;
}

absl::StatusOr<GradientTensors> TensorMap::Match(const std::vector<ConstTensor>& tensors) const {
  GradientTensors gradient;
  for (const ConstTensor& tensor : tensors) {
    if (!tensor.values.empty() && !tensor.bfloat16.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name, "' is given both as float32 and as bfloat16"));
    }
    const v1::Dtype dtype = tensor.bfloat16.empty() ? v1::F32 : v1::BF16;
    if (&tensor == &tensors.front()) gradient.dtype = dtype;
    if (dtype != gradient.dtype) {
      const bool rounded = dtype == v1::BF16;
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name, "' is given as ", rounded ? "bfloat16" : "float32", ", but '",
                       tensors.front().name, "' as ", rounded ? "float32" : "bfloat16",
                       "; all tensors of a gradient are of one type"));
    }
  }
  absl::StatusOr<std::vector<const void*>> begin =
      gradient.dtype == v1::BF16
          ? MatchImpl<const void*>(tensors, [](const ConstTensor& tensor) { return tensor.bfloat16; })
          : MatchImpl<const void*>(tensors, [](const ConstTensor& tensor) { return tensor.values; });
  if (!begin.ok()) return begin.status();
  gradient.begin = *std::move(begin);
  return gradient;
}

absl::StatusOr<std::vector<float*>> TensorMap::Match(const std::vector<MutableTensor>& tensors) const {
  return MatchImpl<float*>(tensors, [](const MutableTensor& tensor) { return tensor.values; });
}

absl::Status TensorMap::CheckFinite(const GradientTensors& tensors, v1::Dtype dtype) const {
  for (size_t tensor = 0; tensor < tensors.begin.size(); ++tensor) {
    const int64_t n = offsets_[tensor + 1] - offsets_[tensor];
    const int64_t bad = FirstRefused(tensors, tensor, 0, n, dtype);
    if (bad < n) return Refusal(tensor, bad, tensors, dtype);
  }
  return absl::OkStatus();
}

absl::Status TensorMap::CheckFinite(uint32_t shard, int64_t first, int64_t count,
                                    const GradientTensors& tensors, v1::Dtype dtype) const {
  absl::Status status;
  Walk(shard, first, count, [&](size_t tensor, int64_t at, int64_t n) {
    if (!status.ok()) return;
    const int64_t bad = FirstRefused(tensors, tensor, at, n, dtype);
    if (bad < n) status = Refusal(tensor, at + bad, tensors, dtype);
  });
  return status;
}

absl::Status TensorMap::Refusal(size_t tensor, int64_t at, const GradientTensors& tensors,
                                v1::Dtype dtype) const {
  float value;
  Decode(tensors.dtype, static_cast<const char*>(tensors.begin[tensor]) + at * BytesPerValue(tensors.dtype),
         &value, 1);
  const std::string what = absl::StrCat(
      model_.tensors[tensor].kind == TensorKind::kParameter ? "the gradient of " : "the new value of ",
      model_.tensors[tensor].name, "[", at, "]");
  if (std::isfinite(value)) {
    return absl::InvalidArgumentError(
        IsQuantised(dtype) ? absl::StrCat(what, " is ", value, ", and ", v1::Dtype_Name(dtype),
                                          " carries magnitudes of at most ", kMostBlockValue)
                           : absl::StrCat(what, " is ", value, ", which bfloat16 rounds to infinity"));
  }
  return absl::InvalidArgumentError(NonFiniteValue(what, value));
}

size_t TensorMap::TensorAt(int64_t element) const {
  return static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), element) - offsets_.begin()) -
         1;
}

std::pair<int64_t, int64_t> TensorMap::LocalRange(uint32_t shard, size_t tensor) const {
  // How many of the shard's elements come before an element of the model.
  const auto before = [&](int64_t element) {
    const int64_t size = partition_.block_size(), round = size * partition_.shards();
    const int64_t of_round = element % round - size * shard;
    return element / round * size + std::clamp<int64_t>(of_round, 0, size);
  };
  return {before(offsets_[tensor]), before(offsets_[tensor + 1])};
}

void TensorMap::Walk(uint32_t shard, int64_t first, int64_t count,
                     absl::FunctionRef<void(size_t tensor, int64_t at, int64_t n)> run) const {
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

std::vector<absl::Span<const char>> TensorMap::Locate(uint32_t shard, int64_t first, int64_t count,
                                                      const GradientTensors& tensors) const {
  std::vector<absl::Span<const char>> runs;
  const int64_t size = BytesPerValue(tensors.dtype);
  Walk(shard, first, count, [&](size_t tensor, int64_t at, int64_t n) {
    const char* const run = static_cast<const char*>(tensors.begin[tensor]) + at * size;
    const auto bytes = static_cast<size_t>(n * size);
    if (!runs.empty() && runs.back().end() == run) {
      // The tensors lie end to end.
      runs.back() = {runs.back().data(), runs.back().size() + bytes};
    } else {
      runs.push_back({run, bytes});
    }
  });
  return runs;
}

void TensorMap::Scatter(uint32_t shard, int64_t first, int64_t count, ValueCursor* values,
                        const std::vector<float*>& tensors) const {
  Walk(shard, first, count,
       [&](size_t tensor, int64_t at, int64_t n) { values->Read(tensors[tensor] + at, n); });
}

}  // namespace weir
