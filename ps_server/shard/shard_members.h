#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "common/protocol/interval_set.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/consistency/policy.h"

namespace weir {

// The workers that a shard lets in, by the coordinator's membership; and what the shard has told each of them
// (bounded, async): the answers to its last pushes, and the clocks whose pushes are lost, because the shard
// was restored from before them. The clocks themselves are the policy's.
//
// Belongs to the shard's queue.
class ShardMembers {
 public:
  // Clocks whose answers are kept for repeats. A client has at most kHoldWindow pushes in the air.
  static constexpr size_t kRecorded = 2 * kHoldWindow;

  // `keeps_clocks`: as ModeTraits has it.
  explicit ShardMembers(bool keeps_clocks) : keeps_clocks_(keeps_clocks) {}

  // 0: no membership has come, and nobody is let in.
  uint64_t epoch() const { return epoch_; }

  enum class Standing { kLive, kFenced, kUnknownYet };
  Standing Check(const v1::Caller& caller) const;
  // "worker:1", or "worker 1" where no membership has named it.
  std::string TaskOf(uint32_t worker) const;

  struct Gone {
    uint32_t worker;
    std::string task;
  };
  struct Change {
    // The clock that joining members get.
    uint64_t floor = 0;
    // These incarnations are not let in any more.
    std::vector<Gone> gone;
  };
  // Follows a membership. The policy drops who is gone and admits who is new.
  Change Follow(const v1::Membership& membership, ConsistencyPolicy& policy);
  // A record of the log is a push of this caller, whom no membership in the log may have named.
  void FollowRecord(const v1::Caller& caller, ConsistencyPolicy& policy);

  // The member has had answers of all its pushes below this clock; those that this shard does not know are
  // lost. Returns how many there are, at most, and logs them.
  uint64_t DeclareLost(uint32_t worker, uint64_t answered_clock, ConsistencyPolicy& policy);
  // The member's push at this clock is lost.
  void AddLost(uint32_t worker, uint64_t clock) { members_.at(worker).lost.Insert(clock); }

  // For a repeat of the push. Null: it is not on record (any more).
  const v1::PushReply* AnswerAt(uint32_t worker, uint64_t clock) const;
  void Record(uint32_t worker, uint64_t clock, const v1::PushReply& reply);

  // To and from a checkpoint. Restore returns how many pushes of the worker were lost.
  void Save(v1::WorkerState& worker) const;
  uint64_t Restore(const v1::WorkerState& worker);
  // All is restored: none of the members has called since, and a membership is yet to come.
  void EndRestore();

 private:
  struct Member {
    std::string task;
    uint64_t incarnation = 0;
    std::map<uint64_t, v1::PushReply> answers;  // by clock
    IntervalSet lost;
    // It has not called since this shard was restored, so its clock may be higher than what is known of it.
    bool unheard = false;
    // Clocks that a start clock passed over meanwhile. Those in here that the member has had answers of are
    // lost, too; its calls will tell.
    IntervalSet passed;
  };

  bool keeps_clocks_;
  uint64_t epoch_ = 0;
  std::map<uint32_t, Member> members_;
};

}  // namespace weir
