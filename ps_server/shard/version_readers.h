#pragma once

#include <atomic>
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
#include "common/sync/mutex.h"
#include "common/system/clock.h"
#include "ps_server/shard/slab_pool.h"

namespace weir {

// A version of a shard as a reader has it: the weights alone, which stay as they are for as long as this is
// held.
struct LentVersion {
  uint64_t count = 0;  // as ShardVersion
  Slab weights;
  // Whoever sends these weights may hand out references to their memory. False: others hold so much memory
  // beyond their time that this reader gets copies.
  bool may_refer = true;
  // Set when the reader has held an old version for too long. Nobody waits for the reader any more; the
  // reader sends no more of the version, and lets it go.
  std::atomic<bool> revoked{false};
};

// Who holds a lent version.
struct Holder {
  uint64_t session = 0;             // 0: none
  absl::optional<uint32_t> worker;  // none: a reader that is no worker
  uint64_t pin = 0;                 // 0: none

  // Trains on the weights; else it only reads them, under a pin.
  bool trains() const { return worker.has_value() && pin == 0; }
};

// How much of a shard's memory readers may hold, and for how long: VersionReaders says what each is of. Tests
// put broken ones here.
struct ReaderLimits {
  size_t max_old = 2;
  size_t max_dead = 2;  // at least 1
  size_t max_written_off = 4;
  absl::Duration patience = absl::Seconds(5);
};

// Who reads which version of a shard, and how long the next version has to wait for them.
//
// Memory of weights is in one of these states: the newest version's; *old*, if a later version was published;
// *making*, if a push is being applied to it; *dead*, if that push was overtaken or broken off.
//
// The next version waits while workers hold more than `max_old` versions, the newest one included, and for
// nothing else. A worker has `patience` from the moment when its version became old. After that RevokeLate()
// writes the version off: it counts no more, and its memory is used again only when all have let it go. So no
// wait for memory is longer than `patience`, whatever workers do. Who only reads (an evaluator, an export)
// holds up nobody: when such readers hold more than `max_old` old versions, the oldest is written off at
// once. Nor do dead versions: `max_dead` of them keep pushes from being applied while they arrive (MayBuild).
//
// While `max_written_off` versions are written off because of workers, workers get copies, which need no
// memory of a version (LentVersion::may_refer); likewise readers. So what is written off is bounded, too:
// 2 * max_written_off + 2 * max_old + max_dead + 1.
//
// Thread-safe. A lent version may outlive this.
class VersionReaders : public std::enable_shared_from_this<VersionReaders> {
 public:
  // `on_release` is called when a reader has let a version go, on its thread and under this lock, until
  // Retire(). May be null.
  VersionReaders(const Clock* clock, const ReaderLimits& limits, std::function<void()> on_release);

  std::shared_ptr<const LentVersion> Lend(uint64_t count, const Slab& weights, const Holder& holder);
  // The same for the version that is being made, whose weights these are.
  std::shared_ptr<const LentVersion> LendMaking(uint64_t count, const Slab& weights, const Holder& holder);
  // These weights are those of a version that was being made: it is the newest one, or dead.
  void Publish(const float* weights);
  void Kill(const float* weights);
  // A version is not the newest one any more.
  void Supersede(const float* weights);

  // A checkpoint is written from this memory, which is not counted among what readers hold.
  void Freeze(std::set<const float*> memory);
  void Thaw();
  bool AnyFrozen() const;
  bool IsFrozen(const float* memory) const;

  bool AreRead(const float* weights) const;
  // The next version has memory to go to.
  bool MayPublish() const;
  // The next push may be applied while it arrives.
  bool MayBuild() const;
  // A version that is read.
  struct Held {
    uint64_t count = 0;
    bool dead = false;
    absl::optional<absl::Time> superseded;  // none: it is the newest version
    std::vector<Holder> holders;
  };
  // Revokes those whose time is over, the holders of the oldest version first, as far as they stand in the
  // way. Returns what was written off.
  std::vector<Held> RevokeLate();
  // Revokes all, and is silent from now on.
  void Retire();

  // What MayPublish() counts and what is dead, by rising version.
  std::vector<Held> held() const;
  size_t written_off() const;

 private:
  enum class State { kPublished, kMaking, kDead };
  struct Version {
    Held Describe() const;
    // Some holder trains.
    bool trains() const;

    uint64_t count = 0;
    State state = State::kPublished;
    absl::optional<absl::Time> superseded;
    std::list<std::pair<LentVersion*, Holder>> readers;
  };
  using Versions = std::map<const float*, Version>;

  std::shared_ptr<const LentVersion> Lend(uint64_t count, const Slab& weights, const Holder& holder,
                                          State state);
  void Release(LentVersion* done);
  // What counts against one limit.
  enum class Kind { kOfWorkers, kOfReaders, kDead };
  bool Is(Kind kind, const Versions::value_type& version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t Count(Kind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes off versions that have been old since `before`, the oldest first, until `most` are left. Returns
  // them.
  std::vector<Held> WriteOff(Kind kind, size_t most, absl::Time before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  const ReaderLimits limits_;
  mutable Mutex mutex_;
  // Null once retired.
  std::function<void()> on_release_ ABSL_GUARDED_BY(mutex_);
  // By their weights: those that somebody reads.
  Versions read_ ABSL_GUARDED_BY(mutex_), written_off_ ABSL_GUARDED_BY(mutex_);
  std::set<const float*> frozen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
