#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/types.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The newest that a member has heard of its job from the coordinator. Pure state. Not thread-safe.
class JobNews {
 public:
  // The member: its rank and incarnation.
  explicit JobNews(const v1::JoinReply& reply);

  // Takes a heartbeat's news. Returns the shards whose incarnation has changed.
  std::vector<uint32_t> Take(const v1::HeartbeatReply& reply);

  // As in HeartbeatReply.
  v1::JobState state() const { return state_; }
  uint64_t revision() const { return revision_; }
  std::optional<uint64_t> work_end() const { return work_end_; }
  bool awaits_evaluation() const { return awaits_evaluation_; }
  const v1::Membership& membership() const { return membership_; }
  // Whether the job's examples are done.
  bool ExamplesDone() const { return state_ == v1::DRAINING || state_ == v1::DONE; }
  // Whether nothing remains to be evaluated at the end.
  bool Evaluated() const { return evaluated_ || state_ == v1::DONE; }
  // Whether the member has the lowest rank of the live workers.
  bool Leads() const;
  // The newest order, once. nullopt: there is none that was not given yet.
  std::optional<EvaluationOrder> TakeOrder();

 private:
  std::vector<uint32_t> SetMembership(const v1::Membership& membership);

  const uint32_t worker_;
  const uint64_t incarnation_;
  v1::JobState state_ = v1::RUNNING;
  uint64_t revision_ = 0;
  std::optional<uint64_t> work_end_;
  bool awaits_evaluation_ = false;
  bool evaluated_ = false;
  EvaluationOrder order_;
  uint64_t given_order_ = 0;
  v1::Membership membership_;
};

}  // namespace weir
