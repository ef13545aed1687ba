#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/value_cursor.h"
#include "common/sync/mutex.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard/block_store.h"

namespace weir {

// A gradient value that is NaN or infinite, as far as it could be read again where it was found: in memory
// that a peer shares it may have changed, and be finite.
struct NonFinite {
  int64_t at;  // local position
  float value;
};

// Makes the next version of a shard out of a gradient that is still arriving, chunk by chunk, in buffers that
// nobody else sees. BlockStore::Build() gives it, BlockStore::Publish() makes its version the current one;
// destroyed before that, it leaves no trace. If another version is published first, it is overtaken: what it
// made is in vain, and its buffers go.
//
// Chunks are given by one thread at a time, while the store does what it likes on another.
class VersionBuilder {
 public:
  ~VersionBuilder();

  // Applies `count` gradient values to the elements from local position `first` on, which start and end with
  // blocks. They lie in pieces of any length and alignment, and each is read once. Returns the first value
  // that is NaN or infinite; nothing: all are finite, or the builder was overtaken.
  //
  // What fits in a message is in the caller's cache and applied by it alone; more, which no core has in its
  // cache, by all of the store's threads.
  std::optional<NonFinite> Apply(int64_t first, int64_t count, absl::Span<const absl::string_view> pieces,
                                 v1::Dtype dtype);

  // What has been made so far; its weights are there wherever a chunk was applied. nullptr: overtaken.
  std::shared_ptr<const LentVersion> version() const;
  // Chunks that were applied. Any thread.
  uint64_t chunks() const { return chunks_.load(std::memory_order_relaxed); }

 private:
  friend class BlockStore;
  VersionBuilder(std::shared_ptr<BlockStore> store, double rate, std::shared_ptr<const ShardVersion> from,
                 std::shared_ptr<const ShardVersion> to, std::shared_ptr<const LentVersion> lent)
      : store_(std::move(store)),
        rate_(rate),
        from_(std::move(from)),
        to_(std::move(to)),
        lent_(std::move(lent)) {}
  // The blocks [begin, end) of what is being made. As Apply().
  std::optional<NonFinite> ApplyBlocks(int64_t begin, int64_t end, ValueCursor gradient, bool bf16,
                                       const ShardVersion& from, const ShardVersion& to,
                                       bool read_soon) const;
  // Gives up what was made, whole with its slots. nullptr: overtaken.
  std::shared_ptr<const ShardVersion> Finish();
  void Overtake();
  void Drop(bool published) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<BlockStore> store_;
  const double rate_;
  std::atomic<uint64_t> chunks_{0};
  mutable Mutex mutex_;
  bool applying_ ABSL_GUARDED_BY(mutex_) = false;
  bool overtaken_ ABSL_GUARDED_BY(mutex_) = false;
  // Null once dropped.
  std::shared_ptr<const ShardVersion> from_ ABSL_GUARDED_BY(mutex_), to_ ABSL_GUARDED_BY(mutex_);
  // `to_`, as readers get it.
  std::shared_ptr<const LentVersion> lent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
