#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/system/clock.h"
#include "common/threads/mutex.h"

namespace weir {

// An array of float32 of a shard's size, 64-byte aligned: weights, an optimizer slot, or a gradient that
// arrives. The last reference returns the memory to its pool.
using Slab = std::shared_ptr<float>;

// Allocates a slab for a pool: this many floats, which live as long as the pointer. nullptr: no memory.
using SlabSource = std::function<std::shared_ptr<float>(size_t elements)>;

// Allocates memory of this process only, in huge pages where the system allows them.
std::shared_ptr<float> AllocateSlab(size_t elements);

// Takes memory of `source` or, where that has none, of this process.
SlabSource OrOwnMemory(SlabSource source);

// A version of a shard as readers see it: only the weights, which do not change while this object is held.
struct LentVersion {
  uint64_t count = 0;  // as ShardVersion
  Slab weights;
  // Whether a caller that sends these weights may send references to their memory. False: other readers have
  // held too much memory for too long, so this reader gets copies.
  bool may_refer = true;
  // Set when the reader has held an old version for too long. The shard no longer waits for the reader, who
  // sends no more of the version and releases it.
  std::atomic<bool> revoked{false};
};

// The holder of a lent version.
struct Holder {
  uint64_t session = 0;             // 0: none
  absl::optional<uint32_t> worker;  // none: the reader is not a worker
  uint64_t pin = 0;                 // 0: none

  // Whether the holder trains on the weights. Otherwise it only reads them, under a pin.
  bool trains() const { return worker.has_value() && pin == 0; }
};

// Limits how much of a shard's memory readers may hold, and for how long; VersionReaders describes each
// limit. Tests use broken limits.
struct ReaderLimits {
  size_t max_old = 2;
  size_t max_dead = 2;  // at least 1
  size_t max_written_off = 4;
  absl::Duration patience = absl::Seconds(5);
};

// Tracks which reader holds which version of a shard, and how long the next version has to wait for readers.
//
// The memory of weights is in one of these states. It is the newest version's. It is *old* if a later version
// was published, *making* while a push is applied to it, and *dead* if that push was overtaken or broken off.
//
// The next version waits while workers hold more than `max_old` versions, the newest version included, and
// for no other reason. A worker has `patience` from the moment when its version became old. After that
// RevokeLate() writes the version off: the version no longer counts, and its memory is reused only when all
// readers have released it. So no wait for memory exceeds `patience`, whatever workers do.
//
// A reader that does not train (an evaluator, an export) delays no version: if such readers hold more than
// `max_old` old versions, the oldest is written off at once. Dead versions do not delay the next version
// either, but if readers hold `max_dead` of them, no push is applied while it arrives (MayBuild).
//
// While `max_written_off` versions are written off because of workers, workers get copies, which hold no
// version's memory (LentVersion::may_refer). Readers that do not train have such a limit, too. So the memory
// of written-off versions is bounded, too: 2 * max_written_off + 2 * max_old + max_dead + 1.
//
// Thread-safe. A lent version may outlive this object.
class VersionReaders : public std::enable_shared_from_this<VersionReaders> {
 public:
  // `on_release` is called when a reader has released a version, on the reader's thread and under this
  // object's lock, until Retire(). May be null.
  VersionReaders(const Clock* clock, const ReaderLimits& limits, std::function<void()> on_release);

  // `making`: lends the version that is being made, which has these weights.
  std::shared_ptr<const LentVersion> Lend(uint64_t count, const Slab& weights, const Holder& holder,
                                          bool making = false);
  // The version in progress, with these weights, is finished: now it is the newest, or dead (Kill).
  void Publish(const float* weights);
  void Kill(const float* weights);
  // The version is no longer the newest one.
  void Supersede(const float* weights);

  // A checkpoint is written from this memory, which does not count as held by readers until Thaw().
  void Freeze(std::set<const float*> memory);
  void Thaw();
  bool AnyFrozen() const;
  bool IsFrozen(const float* memory) const;

  bool AreRead(const float* weights) const;
  // Whether there is memory for the next version.
  bool MayPublish() const;
  // Whether the next push may be applied while it arrives.
  bool MayBuild() const;
  // A version that has readers.
  struct Held {
    uint64_t count = 0;
    bool dead = false;
    absl::optional<absl::Time> superseded;  // none: it is the newest version
    std::vector<Holder> holders;
  };
  // If versions exceed a limit and the time of their readers is over, writes these versions off, the oldest
  // first, and revokes their readers. Returns these versions.
  std::vector<Held> RevokeLate();
  // Revokes all readers. From then on `on_release` is not called.
  void Retire();

  // The newest, old and dead versions with readers, by rising version, without frozen and written-off ones.
  std::vector<Held> held() const;
  size_t written_off() const;

 private:
  enum class State { kPublished, kMaking, kDead };
  struct Version {
    Held Describe() const;
    // Whether at least one holder trains.
    bool trains() const;

    uint64_t count = 0;
    State state = State::kPublished;
    absl::optional<absl::Time> superseded;
    std::list<std::pair<LentVersion*, Holder>> readers;
  };
  using Versions = std::map<const float*, Version>;

  void Release(LentVersion* done);
  // The versions that count against one limit.
  enum class Kind { kOfWorkers, kOfReaders, kDead };
  bool Is(Kind kind, const Versions::value_type& version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t Count(Kind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes off versions that have been old since `before`, the oldest first, until at most `most` are left.
  // Returns them.
  std::vector<Held> WriteOff(Kind kind, size_t most, absl::Time before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  const ReaderLimits limits_;
  mutable Mutex mutex_;
  // Null once retired.
  std::function<void()> on_release_ ABSL_GUARDED_BY(mutex_);
  // The versions with readers, by their weights.
  Versions read_ ABSL_GUARDED_BY(mutex_), written_off_ ABSL_GUARDED_BY(mutex_);
  std::set<const float*> frozen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
