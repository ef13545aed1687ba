#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "client/types.h"

namespace weir {

// Which work a worker is given, in each mode. Pure state: no threads, time or messages. Not thread-safe.

// The job's examples, cut into batches.
struct JobLength {
  uint64_t batch_size = 1;
  // The last batch may be short.
  uint64_t total_batches = 0;
  uint64_t total_examples = 0;

  // The examples of `batch`, which is below total_batches. The caller sets clock and part.
  Work Batch(uint64_t batch) const;
};

// sync: this worker's parts of the open step. Part p of step c is batch c * parts + p; beyond the job's last
// batch there are no parts. Gives no part twice, whatever happens to the membership.
class SyncWorkSource {
 public:
  struct Member {
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    // The member has no parts in steps before this one.
    uint64_t start_clock = 0;
  };

  SyncWorkSource(const JobLength& length, uint32_t parts, uint64_t total_steps, uint32_t worker,
                 uint64_t incarnation, uint64_t open_step);

  // By rising rank. The owners of the open step's parts change at once.
  void SetMembers(std::vector<Member> members);
  // Step `step` is open, so every step before it is past. A number below the open step changes nothing.
  void OpenStep(uint64_t step);

  uint64_t open_step() const { return open_step_; }
  bool done() const { return open_step_ >= total_steps_; }

  // The lowest part of the open step that is this worker's and was not given out.
  std::optional<Work> Next();

 private:
  // The lowest such part at or after `part`; nullopt: none.
  std::optional<uint32_t> FindPart(uint32_t part) const;

  const JobLength length_;
  const uint32_t parts_;
  const uint64_t total_steps_;
  const uint32_t worker_;
  const uint64_t incarnation_;
  uint64_t open_step_;
  std::vector<Member> members_;
  // The parts of the open step that were given out.
  std::set<uint32_t> given_;
};

// bounded, async: the batches of the ranges that the coordinator hands out, one after another, each at this
// worker's next clock.
class RangeWorkSource {
 public:
  RangeWorkSource(const JobLength& length, uint64_t start_clock);

  // Adds a range that was handed out. False, and no change: it reaches beyond the job, or it is known
  // already.
  bool AddRange(uint64_t id, uint64_t first_batch, uint64_t batches);
  // The next work is at least at this clock.
  void RaiseClock(uint64_t clock);

  std::optional<Work> Next();
  // The push of the work at this clock was acknowledged by every shard.
  void Acknowledge(uint64_t clock);

  // Work that was given out and is not acknowledged: clock to range id.
  const std::map<uint64_t, uint64_t>& outstanding() const { return outstanding_; }
  // Ranges whose every batch is acknowledged, until they are Reported().
  std::vector<uint64_t> CompletedRanges() const;
  void Reported(const std::vector<uint64_t>& ranges);

 private:
  struct Range {
    uint64_t next_batch = 0;
    uint64_t end_batch = 0;
    uint64_t unacknowledged = 0;
  };

  const JobLength length_;
  uint64_t next_clock_;
  // By id: the ranges that were not reported.
  std::map<uint64_t, Range> ranges_;
  // Clock to range id.
  std::map<uint64_t, uint64_t> outstanding_;
};

}  // namespace weir
