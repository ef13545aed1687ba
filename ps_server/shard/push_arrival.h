#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/protocol/chunk_set.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard/block_store.h"
#include "ps_server/shard/shard_tables.h"
#include "ps_server/shard/version_builder.h"

namespace weir {

// A push whose gradient is arriving, dense values and rows. Of the dense values it takes the chunks, in any
// order, directly from the memory where they were received. It is either streamed (applied chunk by chunk to
// a version that no reader sees until the shard publishes it) or staged (kept in a buffer until it is whole).
//
// Shard::Begin() makes an arrival. Its owner returns it whole (Shard::Push()), or destroys it, which leaves
// no trace. One thread at a time uses it. It reads each received value once.
class PushArrival {
 public:
  // Exactly one of `builder` and `gradient` is set. A weak reference to `presence` expires with the arrival.
  // `unit`: chunks start and end at multiples of it. `tables`: the shard's; null: the job has none.
  PushArrival(v1::PushRequest header, std::shared_ptr<VersionBuilder> builder, Slab gradient,
              std::shared_ptr<const ShardTables> tables, std::shared_ptr<const void> presence, uint64_t unit);

  // Takes the values from local position `first` on. Errors as ChunkSet::Add(); then no value was taken.
  absl::Status TakeChunk(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes);
  // All chunks of the dense values are there.
  bool whole() const { return came_.whole(); }
  // The push's rows, whole, if its header names any. InvalidArgument: as ShardTables::CheckKeys().
  absl::Status SetRows(PushedRows rows);
  const v1::PushRequest& header() const { return header_; }

  bool streamed() const { return builder_ != nullptr; }
  // Streamed: the version that is being made. Its weights are valid wherever a chunk was taken. nullptr:
  // another push was applied meanwhile, so this one is overtaken; or this one is staged.
  std::shared_ptr<const LentVersion> making() const {
    return builder_ == nullptr ? nullptr : builder_->version();
  }
  bool overtaken() const { return streamed() && builder_->version() == nullptr; }

  // For the shard.
  // No NaN and no infinity has arrived.
  bool finite() const { return !non_finite_.has_value() && !rows_.non_finite.has_value(); }
  // The first one of the dense values and of the rows.
  const std::optional<NonFinite>& non_finite() const { return non_finite_; }
  const std::optional<PushedRows::NonFinite>& non_finite_row() const { return rows_.non_finite; }
  // Null: staged.
  const std::shared_ptr<VersionBuilder>& builder() { return builder_; }
  Slab TakeGradient() { return std::move(gradient_); }
  PushedRows TakeRows() { return std::move(rows_); }

 private:
  const v1::PushRequest header_;
  const std::shared_ptr<VersionBuilder> builder_;
  Slab gradient_;
  const std::shared_ptr<const ShardTables> tables_;
  const std::shared_ptr<const void> presence_;
  ChunkSet came_;
  PushedRows rows_;
  std::optional<NonFinite> non_finite_;
};

}  // namespace weir
