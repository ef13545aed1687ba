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

// Which pushes are arriving at a shard: at most two copies of each, and at most one that is streamed, that is
// applied while it arrives.
//
// Belongs to the shard's queue.
class PushArrivals {
 public:
  // Two copies: a connection may have broken, and its other end not yet know. Whoever holds the result is an
  // arrival of this push. Null: two are arriving.
  std::shared_ptr<const void> Add(const PushKey& key);
  // The push is decided on, or never will be.
  void Remove(const PushKey& key);
  void RemoveWorker(uint32_t worker);

  void BeginStream(const PushKey& key, absl::Time now);
  // The push that is streamed has taken effect; or another one has, before it, and it is overtaken.
  void EndStream() { streamed_.reset(); }
  void Overtake();
  const absl::optional<PushKey>& streamed() const { return streamed_; }
  // This push was overtaken the last time, so it is to be staged now. Until the worker's next push takes
  // effect.
  bool WasOvertaken(const PushKey& key) const;
  void ForgetOvertaken(uint32_t worker) { overtaken_.erase(worker); }

  // Whether a push of so many bytes is to begin after the one that is streamed, of which `chunks` are
  // applied, instead of arriving beside it: together they would take as long, and the one that is ahead would
  // be overtaken by the one that is only staged. Zero: no. Else: to be asked again after so long, for nobody
  // waits for a stream that stands still.
  absl::Duration WaitForStream(int64_t bytes, uint64_t chunks, absl::Time now);

 private:
  using Key = std::tuple<uint32_t, uint64_t, uint32_t>;
  static Key KeyOf(const PushKey& key) { return {key.worker, key.clock, key.part}; }

  std::map<Key, std::vector<std::weak_ptr<const void>>> arriving_;
  absl::optional<PushKey> streamed_;
  // By worker: the clock of its push that was overtaken.
  std::map<uint32_t, uint64_t> overtaken_;
  // How far the stream had come when last seen, and since when.
  uint64_t chunks_ = 0;
  absl::Time moved_;
};

}  // namespace weir
