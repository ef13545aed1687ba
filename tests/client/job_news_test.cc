#include "client/job/job_news.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

v1::Membership Members(uint64_t epoch, std::initializer_list<std::pair<uint32_t, uint64_t>> members,
                       std::initializer_list<uint64_t> shard_incarnations) {
  v1::Membership membership;
  membership.set_epoch(epoch);
  for (const auto& [worker, incarnation] : members) {
    v1::Member& member = *membership.add_members();
    member.set_worker(worker);
    member.set_incarnation(incarnation);
  }
  for (uint64_t incarnation : shard_incarnations) membership.add_shard_incarnations(incarnation);
  return membership;
}

JobNews Joined() {
  v1::JoinReply reply;
  reply.set_worker(1);
  reply.set_incarnation(20);
  *reply.mutable_membership() = Members(3, {{0, 10}, {1, 20}}, {1, 1});
  return JobNews(reply);
}

TEST_CASE("a member leads once those of lower rank have left") {
  JobNews news = Joined();
  CHECK_FALSE(news.Leads());
  v1::HeartbeatReply reply;
  *reply.mutable_membership() = Members(4, {{1, 20}}, {1, 1});
  news.Take(reply);
  CHECK(news.Leads());
  // Somebody else has its rank.
  *reply.mutable_membership() = Members(5, {{1, 21}}, {1, 1});
  news.Take(reply);
  CHECK_FALSE(news.Leads());
}

TEST_CASE("the shards that were restored are told once") {
  JobNews news = Joined();
  v1::HeartbeatReply reply;
  *reply.mutable_membership() = Members(4, {{1, 20}}, {1, 2});
  CHECK(news.Take(reply) == std::vector<uint32_t>{1});
  CHECK(news.Take(reply).empty());
}

TEST_CASE("a membership of an earlier epoch is not taken; one of the same epoch is") {
  JobNews news = Joined();
  v1::HeartbeatReply reply;
  *reply.mutable_membership() = Members(2, {{1, 20}}, {1, 1});
  news.Take(reply);
  CHECK(news.membership().members_size() == 2);
  *reply.mutable_membership() = Members(3, {{1, 20}}, {1, 1});
  news.Take(reply);
  CHECK(news.membership().members_size() == 1);
}

TEST_CASE("an order to evaluate is given once") {
  JobNews news = Joined();
  CHECK_FALSE(news.TakeOrder().has_value());
  v1::HeartbeatReply reply;
  reply.mutable_evaluate()->set_id(4);
  reply.mutable_evaluate()->set_epoch(2);
  news.Take(reply);
  const std::optional<EvaluationOrder> order = news.TakeOrder();
  REQUIRE(order.has_value());
  CHECK(order->id == 4);
  CHECK(order->epoch == 2);
  news.Take(reply);
  CHECK_FALSE(news.TakeOrder().has_value());
}

TEST_CASE("examples are done in DRAINING and DONE; in DONE nothing remains to be evaluated") {
  JobNews news = Joined();
  CHECK_FALSE(news.ExamplesDone());
  v1::HeartbeatReply reply;
  reply.set_state(v1::DRAINING);
  news.Take(reply);
  CHECK(news.ExamplesDone());
  CHECK_FALSE(news.Evaluated());
  reply.set_evaluated(true);
  news.Take(reply);
  CHECK(news.Evaluated());
  reply.set_evaluated(false);
  reply.set_state(v1::DONE);
  news.Take(reply);
  CHECK(news.ExamplesDone());
  CHECK(news.Evaluated());
}

}  // namespace
}  // namespace weir
