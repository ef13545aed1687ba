#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/interval_set.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/calls/calls.h"

namespace weir {

// The workers that a shard admits, according to the coordinator's membership. In bounded and async also the
// answers to each worker's last pushes, and the clocks whose pushes are lost because the shard was restored
// from an older state. The policy keeps the clocks themselves.
//
// Belongs to the shard's queue.
class ShardMembers {
 public:
  // Answers of this many clocks of a worker are kept, for repeats. A client has kHoldWindow pushes in flight.
  static constexpr size_t kRecorded = 2 * kHoldWindow;

  // `keeps_clocks`: ModeTraits::keeps_clocks.
  explicit ShardMembers(bool keeps_clocks) : keeps_clocks_(keeps_clocks) {}

  // 0: no membership has come, and no worker is admitted.
  uint64_t epoch() const { return epoch_; }

  // OK: the caller is a live member. FENCED: the caller is not. Unavailable: the shard does not know yet.
  absl::StatusOr<Verdict> Check(const v1::Caller& caller) const;
  // "worker:1", or "worker 1" if no membership has named the worker.
  std::string TaskOf(uint32_t worker) const;

  struct Gone {
    uint32_t worker;
    std::string task;
  };
  struct Change {
    // The start clock of joining members.
    uint64_t floor = 0;
    // Incarnations that are no longer admitted.
    std::vector<Gone> gone;
  };
  // Installs a membership. The policy removes workers that are gone and admits new ones.
  Change Follow(const v1::Membership& membership, ConsistencyPolicy& policy);
  // The log has a push of this caller. If no membership in the log has named the caller, admits it.
  void FollowRecord(const v1::Caller& caller, ConsistencyPolicy& policy);

  // The member has received the answers to all its pushes below this clock. If this shard does not know some
  // of these pushes, they are lost. Logs them, and returns an upper limit of their number.
  uint64_t DeclareLost(uint32_t worker, uint64_t answered_clock, ConsistencyPolicy& policy);
  // The member's push at this clock is lost.
  void AddLost(uint32_t worker, uint64_t clock) { members_.at(worker).lost.Insert(clock); }

  // The answer for a repeat of the push. Null: the answer is not on record, or no longer.
  const v1::PushReply* AnswerAt(uint32_t worker, uint64_t clock) const;
  void Record(uint32_t worker, uint64_t clock, const v1::PushReply& reply);

  // To and from a checkpoint. Restore() returns how many pushes of the worker were lost.
  void Save(v1::WorkerState& worker) const;
  uint64_t Restore(const v1::WorkerState& worker);
  // Ends the restore. Each member counts as unheard, and none is admitted before the next membership.
  void EndRestore();

 private:
  struct Member {
    std::string task;
    uint64_t incarnation = 0;
    std::map<uint64_t, v1::PushReply> answers;  // by clock
    IntervalSet lost;
    // The member has not called since the shard was restored, so its clock may be above the shard's record.
    bool unheard = false;
    // The clocks that a start clock passed over while the member was unheard. If the member has received the
    // answer for one of these clocks, that push is lost, too; the member's calls will say which.
    IntervalSet passed;
  };

  bool keeps_clocks_;
  uint64_t epoch_ = 0;
  std::map<uint32_t, Member> members_;
};

}  // namespace weir
