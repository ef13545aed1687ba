#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/protocol/exchange_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// A push whose gradient (dense values and rows) is arriving. It takes chunks of the dense values in any
// order, directly from the memory where they were received. It is either streamed (applied chunk by chunk to
// a version that no reader sees until the shard publishes it) or staged (kept in a buffer until it is whole).
//
// Shard::Begin() makes an arrival. Its owner returns the arrival whole (Shard::Push()), or destroys it, which
// leaves no trace. One thread at a time uses the arrival. Each received value is read once.
class PushArrival {
 public:
  // Exactly one of `builder` and `gradient` is set. A weak reference to `presence` expires with the arrival.
  // `tables`: the shard's; null: the job has none. Chunks start and end at multiples of `unit`.
  PushArrival(v1::PushRequest header, std::shared_ptr<VersionBuilder> builder, Slab gradient,
              std::shared_ptr<const ShardTables> tables, std::shared_ptr<const void> presence, uint64_t unit);

  // Takes the values from local position `first` on, and returns how many. If it fails, no value was taken.
  // Errors: as ChunkSet::Add().
  absl::StatusOr<uint64_t> TakeChunk(uint64_t first, absl::Span<const absl::string_view> pieces,
                                     uint64_t bytes);
  // All chunks of the dense values are there.
  bool whole() const { return came_.whole(); }
  // Takes all rows of the push, if its header names any. InvalidArgument: as ShardTables::CheckKeys().
  absl::Status SetRows(PushedRows rows);
  const v1::PushRequest& header() const { return header_; }

  bool streamed() const { return builder_ != nullptr; }
  // Returns the version that a streamed push is making. Its weights are valid wherever a chunk was taken.
  // nullptr: the push is overtaken, because a different push was applied meanwhile; or the push is staged.
  std::shared_ptr<const LentVersion> making() const {
    return builder_ == nullptr ? nullptr : builder_->version();
  }
  bool overtaken() const { return streamed() && builder_->version() == nullptr; }

  // ---- for the shard

  // No NaN and no infinity has arrived.
  bool finite() const { return !non_finite_.has_value() && !rows_.non_finite.has_value(); }
  // The first NaN or infinity among the dense values, and among the rows.
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

// The pushes that are arriving at a shard: at most two copies of each push, and at most one streamed push,
// which is applied while it arrives.
//
// Belongs to the shard's queue.
class PushArrivals {
 public:
  // Adds a copy of a push whose rows take `row_bytes`. The caller keeps the result as long as this copy
  // arrives. Null: two copies are arriving already. Two are allowed because the connection of the first may
  // have broken without this end knowing yet.
  std::shared_ptr<const void> Add(const PushKey& key, uint64_t row_bytes = 0);
  // The bytes of the rows that are arriving for a step, by part.
  std::map<uint32_t, uint64_t> RowBytesOf(uint64_t step) const;
  // The push is decided on, or will never be.
  void Remove(const PushKey& key);
  void RemoveWorker(uint32_t worker);
  // The number of pushes on record. If all copies of a push are gone without a decision, as for a part that a
  // step was committed without, the push stays on record until its worker's next push begins.
  size_t size() const { return arriving_.size(); }

  void BeginStream(const PushKey& key, absl::Time now);
  // EndStream(): the streamed push has taken effect. Overtake(): a different one has taken effect before it.
  void EndStream() { streamed_.reset(); }
  void Overtake();
  const absl::optional<PushKey>& streamed() const { return streamed_; }
  // Whether this push was overtaken when it last arrived, so that it must be staged now. Stays true until a
  // push of the worker takes effect.
  bool WasOvertaken(const PushKey& key) const;
  void ForgetOvertaken(uint32_t worker) { overtaken_.erase(worker); }

  // How long a push of this many bytes should wait for the streamed push, of which `chunks` are applied. Side
  // by side both would take as long, and the staged push would overtake the streamed one. Zero: the push
  // begins now. Otherwise ask again after this time, because no push waits for a stream that stands still.
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
