#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/protocol/interval_set.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The batches that all holders hold. The intervals of one holder are disjoint.
Intervals HeldByAll(const std::vector<Intervals>& holders);

// bounded, async: which worker gets which batches of the job. Batches are handed out in order, in ranges. A
// range that a worker left undone goes to the next worker that asks. Not thread-safe.
class RangeTable {
 public:
  // Makes about 16 ranges per worker, of 1 to 64 batches, so that the workers finish at about the same time.
  // `done`: the batches that are done already; rising, disjoint.
  RangeTable(uint64_t total_batches, uint32_t workers, const Intervals& done = {});

  // Batches from `batch` on are not handed out. At first there is no such limit.
  void SetWorkEnd(uint64_t batch) { work_end_ = batch; }
  // The job ends with the batches that are complete.
  void EndHere();

  // The range that this worker holds, or else a new one. nullopt: all batches before the work's end are
  // handed out or done.
  std::optional<v1::Range> Take(uint32_t worker);
  // Ignored if the worker does not have the range.
  void Complete(uint64_t id, uint32_t worker);
  // The worker is gone: its range may be taken again.
  void Release(uint32_t worker);

  bool Available() const {
    return !returned_.empty() || (!fresh_.empty() && fresh_.front().first < work_end_);
  }
  bool done() const { return completed_batches_ == total_batches_; }
  uint64_t completed_batches() const { return completed_batches_; }

 private:
  uint64_t total_batches_;
  const uint64_t range_batches_;
  uint64_t work_end_ = std::numeric_limits<uint64_t>::max();
  uint64_t completed_batches_ = 0;
  // Intervals [begin, end) that were never handed out, rising.
  std::deque<std::pair<uint64_t, uint64_t>> fresh_;
  // By the first batch, which is a range's id.
  std::map<uint64_t, v1::Range> returned_;
  std::map<uint32_t, v1::Range> held_;  // by worker
};

}  // namespace weir
