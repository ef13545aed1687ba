#include "ps_server/table/record_slabs.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace weir {
namespace {

constexpr size_t kSmallPiece = 4 << 10, kLargestPiece = 256 << 10;  // bytes
constexpr size_t kLeastRecords = 4;                                 // of a piece

}  // namespace

size_t RecordSlabs::PieceRecords(size_t piece) const {
  const size_t bytes = std::min(kLargestPiece, kSmallPiece << std::min<size_t>(piece, 10));
  return std::clamp<size_t>(bytes / record_bytes_, kLeastRecords, size_t{1} << kOffsetBits);
}

uint32_t RecordSlabs::Take() {
  if (returned_ != kNone) {
    const uint32_t number = returned_;
    std::memcpy(&returned_, At(number), sizeof returned_);
    return number;
  }
  if (pieces_.empty() || next_ == PieceRecords(pieces_.size() - 1)) {
    // The last number is kNone, and far beyond any machine's memory: one partition of a table would have 64
    // GB.
    if (pieces_.size() + 1 == size_t{1} << (32 - kOffsetBits)) throw std::bad_alloc();
    const size_t bytes = PieceRecords(pieces_.size()) * record_bytes_;
    pieces_.push_back(pool_->Take(bytes));
    bytes_ += bytes;
    next_ = 0;
  }
  return static_cast<uint32_t>((pieces_.size() - 1) << kOffsetBits | next_++);
}

void RecordSlabs::Return(uint32_t number) {
  std::memcpy(At(number), &returned_, sizeof returned_);
  returned_ = number;
}

}  // namespace weir
