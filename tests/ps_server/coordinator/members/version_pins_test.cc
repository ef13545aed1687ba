#include "ps_server/coordinator/members/version_pins.h"

#include <catch2/catch.hpp>
#include <memory>

#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

struct Fixture : JobFixture {
  using Answer = std::shared_ptr<std::optional<absl::StatusOr<v1::PinReply>>>;
  Answer Ask(uint32_t worker) {
    v1::PinRequest request;
    request.mutable_caller()->set_worker(worker);
    request.set_lease_seconds(60);
    auto answer = std::make_shared<std::optional<absl::StatusOr<v1::PinReply>>>();
    pins.Ask(request, "evaluator",
             [answer](absl::StatusOr<v1::PinReply> reply) { *answer = std::move(reply); });
    return answer;
  }
  // One of two shards has pinned the version of this count.
  void Pinned(uint32_t shard, uint64_t pin, uint64_t count) {
    v1::Pinned pinned;
    pinned.set_pin(pin);
    pinned.mutable_version()->set_count(count);
    pins.OnPinned(shard, pinned, 2);
  }
  std::optional<std::vector<uint64_t>> Release(uint32_t worker, uint64_t pin) {
    v1::UnpinRequest request;
    request.mutable_caller()->set_worker(worker);
    request.set_pin(pin);
    return pins.Release(request);
  }

  std::vector<v1::ControlMessage> sent;
  VersionPins pins{job, 100, [this](const v1::ControlMessage& m) { sent.push_back(m); }};
};

TEST_CASE("A pin is answered once every shard keeps a version, and is let go when its holder has read it") {
  Fixture f;
  const auto answer = f.Ask(7);
  REQUIRE(f.sent.size() == 1);
  CHECK(f.sent[0].pin().pin() == 100);
  f.Pinned(0, 100, 41);
  CHECK_FALSE(answer->has_value());
  f.Pinned(1, 100, 42);
  REQUIRE(answer->has_value());
  REQUIRE((*answer)->ok());
  CHECK((**answer)->pin() == 100);
  CHECK((**answer)->versions_size() == 2);
  CHECK_FALSE(f.Release(8, 100).has_value());
  CHECK_FALSE(f.Release(7, 99).has_value());
  CHECK(f.Release(7, 100) == std::vector<uint64_t>{41, 42});
  CHECK_FALSE(f.Release(7, 100).has_value());
  CHECK(f.sent.back().unpin().pin() == 100);
}

TEST_CASE("Two versions are pinned at most, and those who wait share the next one") {
  Fixture f;
  for (uint32_t caller : {1, 2}) f.Ask(caller);
  const auto third = f.Ask(3), fourth = f.Ask(4);
  CHECK(f.sent.size() == 2);
  for (uint32_t shard : {0, 1}) f.Pinned(shard, 100, 5);
  for (uint32_t shard : {0, 1}) f.Pinned(shard, 101, 6);
  CHECK_FALSE(third->has_value());
  f.Release(1, 100);
  CHECK(f.sent.back().pin().pin() == 102);
  for (uint32_t shard : {0, 1}) f.Pinned(shard, 102, 7);
  REQUIRE((third->has_value() && fourth->has_value()));
  CHECK((**third)->pin() == 102);
  CHECK((**fourth)->pin() == 102);
}

TEST_CASE("A wish that is not granted, and a pin that not every shard confirms, end with an error") {
  Fixture f;
  const auto first = f.Ask(1);
  f.Ask(2);
  f.clock.Advance(absl::Seconds(1));
  const auto third = f.Ask(3);
  f.Pinned(0, 100, 5);
  f.clock.Advance(absl::Seconds(8));
  f.pins.Tick();
  CHECK_FALSE(first->has_value());
  f.clock.Advance(absl::Seconds(1));
  f.pins.Tick();
  REQUIRE(first->has_value());
  CHECK(absl::IsDeadlineExceeded((*first)->status()));
  SECTION("all who wait hear why a shard is gone") {
    f.pins.DropAll(absl::UnavailableError("ps:1 was lost"));
    REQUIRE(third->has_value());
    CHECK_THAT(std::string((*third)->status().message()), Contains("ps:1 was lost"));
  }
}

TEST_CASE("A caller that is out holds nothing back") {
  Fixture f;
  f.Ask(1);
  f.Ask(2);
  const auto third = f.Ask(3);
  for (uint32_t shard : {0, 1}) f.Pinned(shard, 100, 5);
  f.pins.DropCaller(1);
  CHECK(f.sent.back().pin().pin() == 102);
  CHECK_FALSE(third->has_value());
}

}  // namespace
}  // namespace weir
