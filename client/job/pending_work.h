#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/exchange/shard_set.h"
#include "client/types.h"
#include "common/protocol/mode_traits.h"
#include "proto/coordinator.pb.h"

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
    uint32_t share = 0;  // v1.Member.share
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

// The work of a member: what NextWork() gives out next, which calls to the shards are out, and which pushes
// failed. Pure state: no threads, time or messages. Not thread-safe.
class PendingWork {
 public:
  // Work; nullopt: there is no more.
  using Result = absl::StatusOr<std::optional<Work>>;
  // Clock and part.
  using PushKey = std::pair<uint64_t, uint32_t>;
  // One call to the shards, as far as it concerns work.
  struct Call {
    std::optional<PushKey> push;
    std::optional<uint64_t> pull;
    bool probe = false;
  };
  struct NextPart {
    std::optional<Result> result;
    // No result, and no call is out that tells when this step, the one after the open step, opens: make one.
    // Otherwise an event is awaited.
    std::optional<uint64_t> probe;
  };

  PendingWork(const ModeTraits& mode, const JobLength& length, const v1::JoinReply& reply);

  // A call begins; its answers have come.
  void Begin(const Call& call);
  void End(const Call& call, const absl::StatusOr<ShardSet::Answers>& answers);
  // The push of this work was not begun. No range and no step can be completed without it, until it is begun
  // again.
  void FailPush(const Work& work, const absl::Status& why);
  size_t pushes_out() const { return pushes_out_; }

  // The clock and the examples of the newest work that was given out; 0: there was none.
  uint64_t newest_clock() const { return newest_.clock; }
  uint64_t newest_examples() const { return newest_.examples; }
  // Whether all of the job's work was given out, by this member or by others. `work_end`: as in
  // NextOfParts().
  bool Done(std::optional<uint64_t> work_end) const;

  // sync. The owners of the open step's parts change at once.
  void SetMembers(const v1::Membership& membership);
  // sync: step `step` is open, so every step before it is past.
  void OpenStep(uint64_t step) { parts_.OpenStep(step); }
  // sync. `work_end`: HeartbeatReply.work_end, no work from this step on. `examples_done`: the job's examples
  // are done.
  NextPart NextOfParts(std::optional<uint64_t> work_end, bool examples_done);

  // bounded, async. nullopt: a range must be taken, or an event is awaited.
  std::optional<Result> NextOfRanges(bool examples_done);
  // A range is reported, and the next one taken, when its last push is acknowledged. One thread at a time.
  bool MayTakeRange() const { return ranges_.outstanding().empty() && !taking_range_; }
  bool taking_range() const { return taking_range_; }
  // The work that was given out and is not acknowledged has this clock or a higher one. Only if there is any.
  uint64_t oldest_clock() const { return ranges_.outstanding().begin()->first; }
  // Returns the ranges to report as completed.
  std::vector<uint64_t> BeginTaking();
  void EndTaking() { taking_range_ = false; }
  // The answer to the call that reported `completed`. False: there is no range yet.
  absl::StatusOr<bool> TakeRange(const v1::NextRangeReply& reply, const std::vector<uint64_t>& completed);

 private:
  const ModeTraits& mode_;
  // Exactly one of the two is used.
  SyncWorkSource parts_;
  RangeWorkSource ranges_;
  Work newest_;
  size_t pushes_out_ = 0;
  // sync: the clocks of the pulls in flight, probes included.
  std::multiset<uint64_t> pulls_out_;
  // sync: the error of the last probe.
  absl::Status probe_error_;
  std::map<PushKey, absl::Status> failed_pushes_;
  bool taking_range_ = false;
  bool ranges_done_ = false;
};

}  // namespace weir
