// sync: how many parts of a step each worker computes.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

struct Sharing : CoordinatorFixture {
  explicit Sharing(v1::ConsistencyConfig::Mode mode = v1::ConsistencyConfig::MODE_SYNC)
      : CoordinatorFixture(mode) {
    train_examples = 8 * 8 * 20;
    if (mode == v1::ConsistencyConfig::MODE_SYNC) config.mutable_consistency()->set_parts(8);
    own_protocol_from = 5000;
  }
  // Each worker reports twice, with this many seconds for each of its parts.
  void Report(const std::vector<double>& seconds_of_part) {
    for (const uint64_t parts : {0, 8}) {
      for (size_t rank = 0; rank < seconds_of_part.size(); ++rank) {
        v1::HeartbeatRequest request;
        *request.mutable_caller() = CallerOf(members[rank]);
        request.mutable_report()->set_batches(parts);
        request.mutable_report()->set_compute_seconds(seconds_of_part[rank] * static_cast<double>(parts));
        coordinator->Heartbeat(request, Keep(std::make_shared<Answer<v1::HeartbeatReply>>()));
      }
    }
  }
  static std::vector<uint32_t> SharesIn(const v1::Membership& membership) {
    std::vector<uint32_t> shares;
    for (const v1::Member& member : membership.members()) shares.push_back(member.share());
    return shares;
  }
};

TEST_CASE("ps:0 deals parts by the workers' speed, and tells shards and members under a new epoch") {
  Sharing f;
  f.StartJob();
  const uint64_t epoch = f.shards[0]->Membership().epoch();
  f.Report({1, 3});
  f.coordinator->Tick();
  CHECK(f.shards[1]->Membership().epoch() == epoch + 1);
  CHECK(Sharing::SharesIn(f.shards[1]->Membership()) == std::vector<uint32_t>{6, 2});
  CHECK(Sharing::SharesIn(f.Status().membership()) == std::vector<uint32_t>{6, 2});
  // A worker goes: its share is no longer among those that must be all parts.
  f.Leave(f.members[1], /*done=*/false, "tired");
  f.coordinator->Tick();
  CHECK(Sharing::SharesIn(f.shards[1]->Membership()) == std::vector<uint32_t>{0});
}

TEST_CASE("ps:0 deals no parts to a worker that does not know of shares, nor outside sync") {
  Sharing old;
  old.own_protocol_from.reset();
  Sharing async(v1::ConsistencyConfig::MODE_ASYNC);
  for (Sharing* const f : {&old, &async}) {
    f->StartJob();
    const uint64_t epoch = f->shards[0]->Membership().epoch();
    f->Report({1, 3});
    f->coordinator->Tick();
    CHECK(f->shards[0]->Membership().epoch() == epoch);
  }
}

}  // namespace
}  // namespace weir
