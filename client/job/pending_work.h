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
#include "client/job/work_source.h"
#include "client/types.h"
#include "common/protocol/mode_traits.h"
#include "proto/coordinator.pb.h"

namespace weir {

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

  // The clock of the newest work that was given out.
  uint64_t newest_clock() const { return newest_clock_; }
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
  uint64_t newest_clock_ = 0;
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
