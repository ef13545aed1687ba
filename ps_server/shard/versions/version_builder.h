#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/codec/value_codec.h"
#include "common/threads/mutex.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// A NaN or an infinity in a gradient. The value is read a second time for the message. If a peer shares the
// memory, the value may have become finite by then.
struct NonFinite {
  int64_t at;  // local position
  float value;
};

// Makes the next version of a shard from a gradient that is still arriving, chunk by chunk, in buffers that
// no other code sees. BlockStore::Build() creates a builder, BlockStore::Publish() makes its version the
// current one. A builder that is destroyed before that leaves no trace. If another version is published
// first, the builder is overtaken: its work is discarded and its buffers are released.
//
// One thread at a time passes chunks, while another thread may use the store.
class VersionBuilder {
 public:
  ~VersionBuilder();

  // Applies `count` gradient values to the elements from local position `first` on; this range starts and
  // ends at borders of blocks. The values lie in pieces of any length and alignment, and each value is read
  // once. Returns the first value that is NaN or infinite. nullopt: there is none, or it was overtaken.
  //
  // A chunk that fits in a message is in the caller's cache, so the calling thread applies it alone. All of
  // the store's threads apply a larger chunk, which no core has in its cache.
  std::optional<NonFinite> Apply(int64_t first, int64_t count, absl::Span<const absl::string_view> pieces,
                                 v1::Dtype dtype);

  // The version so far. Its weights are valid wherever a chunk was applied. nullptr: overtaken.
  std::shared_ptr<const LentVersion> version() const;
  // The number of chunks that were applied. Any thread.
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
  // As Apply(), for the blocks [begin, end) of the version in progress.
  std::optional<NonFinite> ApplyBlocks(int64_t begin, int64_t end, ValueCursor gradient, v1::Dtype dtype,
                                       const ShardVersion& from, const ShardVersion& to,
                                       bool read_soon) const;
  // Returns the finished version, with its slots, and drops this object's references. nullptr: overtaken.
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
  // `to_` in the form that readers get.
  std::shared_ptr<const LentVersion> lent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
