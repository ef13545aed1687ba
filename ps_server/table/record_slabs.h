#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps_server/table/slab_pool.h"

namespace weir {

// Records of one size in pieces of a pool. A record has a number and does not move. The first pieces are
// small, so that a small table is.
//
// One thread at a time.
class RecordSlabs {
 public:
  // record_bytes: a multiple of 8. The pool outlives this object.
  RecordSlabs(size_t record_bytes, SlabPool* pool) : record_bytes_(record_bytes), pool_(pool) {}

  // A record with any contents.
  uint32_t Take();
  void Return(uint32_t number);

  char* At(uint32_t number) const {
    return pieces_[number >> kOffsetBits] + (number & kOffsetMask) * record_bytes_;
  }
  // Of all pieces.
  size_t bytes() const { return bytes_; }

 private:
  // A number is a piece and an offset in it, in records.
  static constexpr uint32_t kOffsetBits = 14, kOffsetMask = (1u << kOffsetBits) - 1;
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t PieceRecords(size_t piece) const;

  size_t record_bytes_;
  SlabPool* pool_;
  std::vector<char*> pieces_;
  size_t bytes_ = 0;
  size_t next_ = 0;  // the first record of the last piece that was never given out
  // The returned records are a list: each begins with the number of the next one.
  uint32_t returned_ = kNone;
};

}  // namespace weir
