#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "proto/coordinator.pb.h"

namespace weir {

// bounded, async: which batches of the job go to whom. Handed out in order, in ranges; what a worker that is
// gone left undone goes to the next one who asks. Not thread-safe.
class RangeTable {
 public:
  // About 16 ranges a worker, of 1 to 64 batches, so that the end of the job is level.
  RangeTable(uint64_t total_batches, uint32_t workers);

  // The range that this worker has and did not complete, else a new one. nullopt: all are out or done.
  std::optional<v1::Range> Take(uint32_t worker);
  // Ignored if the worker does not have the range.
  void Complete(uint64_t id, uint32_t worker);
  // The worker is gone: what it has goes back.
  void Release(uint32_t worker);

  bool Available() const { return !returned_.empty() || next_ < ranges_; }
  bool done() const { return completed_ == ranges_; }
  uint64_t completed_batches() const { return completed_batches_; }

 private:
  v1::Range Make(uint64_t id) const;

  const uint64_t total_batches_, range_batches_, ranges_;
  uint64_t next_ = 0;  // the first that was never handed out
  uint64_t completed_ = 0, completed_batches_ = 0;
  std::set<uint64_t> returned_;
  std::map<uint32_t, uint64_t> held_;  // worker -> range
};

}  // namespace weir
