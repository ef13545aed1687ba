#include "client/job/job_news.h"

#include <algorithm>

namespace weir {

JobNews::JobNews(const v1::JoinReply& reply) : worker_(reply.worker()), incarnation_(reply.incarnation()) {
  SetMembership(reply.membership());
  if (reply.has_work_end()) work_end_ = reply.work_end();
}

std::vector<uint32_t> JobNews::Take(const v1::HeartbeatReply& reply) {
  revision_ = reply.revision();
  state_ = reply.state();
  evaluated_ = reply.evaluated();
  work_end_ = reply.has_work_end() ? std::optional(reply.work_end()) : std::nullopt;
  awaits_evaluation_ = reply.awaits_evaluation();
  order_ = {reply.evaluate().id(), reply.evaluate().epoch()};
  // Of an equal epoch, too: an epoch is announced before all shards have confirmed it, and members that join
  // with it come after that.
  if (!reply.has_membership() || reply.membership().epoch() < membership_.epoch()) return {};
  return SetMembership(reply.membership());
}

std::vector<uint32_t> JobNews::SetMembership(const v1::Membership& membership) {
  std::vector<uint32_t> restored;
  const int shards = std::min(membership.shard_incarnations_size(), membership_.shard_incarnations_size());
  for (int shard = 0; shard < shards; ++shard) {
    if (membership.shard_incarnations(shard) != membership_.shard_incarnations(shard))
      restored.push_back(shard);
  }
  membership_ = membership;
  return restored;
}

bool JobNews::Leads() const {
  return membership_.members_size() > 0 && membership_.members(0).worker() == worker_ &&
         membership_.members(0).incarnation() == incarnation_;
}

std::optional<EvaluationOrder> JobNews::TakeOrder() {
  if (order_.id <= given_order_) return std::nullopt;
  given_order_ = order_.id;
  return order_;
}

}  // namespace weir
