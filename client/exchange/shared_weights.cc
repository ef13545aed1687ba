#include "client/exchange/shared_weights.h"

#include <algorithm>

namespace weir {

ShardView::ShardView(int64_t elements, int64_t unit, std::shared_ptr<FloatPool<>> buffers, bool in_place)
    : unit_(unit),
      buffers_(std::move(buffers)),
      may_refer_(in_place),
      units_(static_cast<size_t>((elements + unit - 1) / unit)) {}

bool ShardView::MayRefer(const char* values) const {
  // A shard's offset is not trusted to be aligned.
  return may_refer_ && reinterpret_cast<uintptr_t>(values) % alignof(float) == 0;
}

void ShardView::Refer(int64_t first, const char* values) {
  units_[static_cast<size_t>(first / unit_)] = reinterpret_cast<const float*>(values);
}

float* ShardView::Copy(int64_t first) {
  if (buffer_ == nullptr) buffer_ = buffers_->Take();
  float* const to = buffer_.get() + first;
  units_[static_cast<size_t>(first / unit_)] = to;
  return to;
}

void ShardView::Clear() {
  std::fill(units_.begin(), units_.end(), nullptr);
  chunks_.clear();
  buffer_ = nullptr;
}

const float* ShardView::At(int64_t element) const {
  return units_[static_cast<size_t>(element / unit_)] + element % unit_;
}

std::vector<std::vector<absl::Span<const float>>> PiecesOf(const TensorMap& tensors,
                                                           const std::vector<ShardView>& shards) {
  const int64_t block_size = tensors.partition().block_size();
  const auto count = static_cast<int64_t>(shards.size());
  std::vector<std::vector<absl::Span<const float>>> all;
  int64_t element = 0;
  for (const TensorSpec& tensor : tensors.model().tensors) {
    std::vector<absl::Span<const float>>& pieces = all.emplace_back();
    for (int64_t left = tensor.elements(); left > 0;) {
      const int64_t block = element / block_size, in_block = element % block_size;
      const int64_t n = std::min(left, block_size - in_block);
      const ShardView& shard = shards[static_cast<size_t>(block % count)];
      const absl::Span<const float> piece(shard.At(block / count * block_size + in_block),
                                          static_cast<size_t>(n));
      if (!pieces.empty() && pieces.back().end() == piece.begin()) {
        pieces.back() = {pieces.back().data(), pieces.back().size() + piece.size()};
      } else {
        pieces.push_back(piece);
      }
      element += n;
      left -= n;
    }
  }
  return all;
}

}  // namespace weir
