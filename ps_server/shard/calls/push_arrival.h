#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/protocol/chunk_set.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"
#include "ps_server/shard/versions/version_builder.h"

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

// The pushes that are arriving at a shard: at most two copies of each push, and at most one that is streamed,
// which means applied while it arrives.
//
// Belongs to the shard's queue.
class PushArrivals {
 public:
  // Two copies are allowed because a connection may have broken without this end knowing yet. The result
  // lives as long as the arrival of this push. Null: two copies are arriving already. `row_bytes`: of its
  // rows.
  std::shared_ptr<const void> Add(const PushKey& key, uint64_t row_bytes = 0);
  // The rows of a step's parts that are arriving, in bytes by part.
  std::map<uint32_t, uint64_t> RowBytesOf(uint64_t step) const;
  // The push is decided on, or never will be decided on.
  void Remove(const PushKey& key);
  void RemoveWorker(uint32_t worker);
  // Pushes on record. A push whose copies are all gone without a decision, such as a part that a step was
  // committed without, is on record until its worker's next push begins.
  size_t size() const { return arriving_.size(); }

  void BeginStream(const PushKey& key, absl::Time now);
  // The streamed push has taken effect. Overtake(): another push has taken effect before it.
  void EndStream() { streamed_.reset(); }
  void Overtake();
  const absl::optional<PushKey>& streamed() const { return streamed_; }
  // This push was overtaken the last time, so it must be staged now. True until the worker's next push takes
  // effect.
  bool WasOvertaken(const PushKey& key) const;
  void ForgetOvertaken(uint32_t worker) { overtaken_.erase(worker); }

  // Whether a push of this many bytes should begin after the streamed one, of which `chunks` are applied,
  // instead of arriving beside it: side by side they would take as long, and the staged one would overtake
  // the streamed one. Zero: no. Otherwise: ask again after this time, because no push waits for a stream that
  // stands still.
  absl::Duration WaitForStream(int64_t bytes, uint64_t chunks, absl::Time now);

 private:
  using Key = std::tuple<uint32_t, uint64_t, uint32_t>;
  static Key KeyOf(const PushKey& key) { return {key.worker, key.clock, key.part}; }

  // Forgets the worker's pushes of which no copy is arriving.
  void Prune(uint32_t worker);

  struct Arriving {
    std::vector<std::weak_ptr<const void>> copies;
    uint64_t row_bytes = 0;
  };
  std::map<Key, Arriving> arriving_;
  absl::optional<PushKey> streamed_;
  // The clock of each worker's push that was overtaken, by worker.
  std::map<uint32_t, uint64_t> overtaken_;
  // The stream's progress when it was last checked, and since when it has not moved.
  uint64_t chunks_ = 0;
  absl::Time moved_;
};

}  // namespace weir
