#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "ps_server/consistency/policy.h"

namespace weir {

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
