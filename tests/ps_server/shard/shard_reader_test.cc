// Readers get whole versions, pinned ones too.
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

PullAnswerPtr PullPin(ShardFixture& f, uint64_t pin) {
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(9);  // no member
  request.set_pin(pin);
  return f.PullRequest(request);
}

TEST_CASE("No pull is torn: each is of one version, whole, while updates go on") {
  ShardFixture f(kAsync);
  f.config.mutable_server()->set_apply(
      GENERATE(v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED));
  f.model.tensors[0].shape = {5000};
  f.Start();
  constexpr uint64_t kPushes = 3000;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t clock = 0; clock < kPushes; ++clock) {
      v1::PushRequest header;
      *header.mutable_caller() = f.CallerOf(0);
      header.set_clock(clock);
      header.set_examples(1);
      header.mutable_base()->set_incarnation(ShardFixture::kIncarnation);
      header.set_elements(5000);
      std::atomic<bool> answered{false};
      PushWhole(*f.shard, 7, header, std::vector<float>(5000, 1.0f),
                [&](const absl::StatusOr<v1::PushReply>&) { answered = true; });
      while (!answered) std::this_thread::yield();
    }
    done = true;
  });
  // Readers keep versions for a while, so that buffers returned too early would show.
  std::vector<std::thread> readers;
  std::atomic<int> torn{0}, pulls{0};
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      std::vector<std::pair<uint64_t, std::shared_ptr<const LentVersion>>> kept;
      bool last = false;
      while (!last) {
        last = done;
        v1::PullRequest request;
        *request.mutable_caller() = f.CallerOf(1);
        std::atomic<bool> answered{false};
        f.shard->Pull(8, request, [&](absl::StatusOr<PullAnswer> answer) {
          kept.emplace_back(answer->header.version().count(), answer->version);
          answered = true;
        });
        while (!answered) std::this_thread::yield();
        ++pulls;
        if (kept.size() < 8 && !last) continue;
        for (const auto& [count, version] : kept) {
          torn += version->count != count;
          for (int i = 0; i < 5000; ++i) torn += version->weights.get()[i] != static_cast<float>(count);
        }
        kept.clear();
        f.shard->Tick();
      }
    });
  }
  writer.join();
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == 0);
  CHECK(pulls > 0);
  CHECK(f.Weights() == std::vector<float>(5000, kPushes));
}

TEST_CASE("A pin keeps one version for whoever reads it, until it is let go") {
  ShardFixture f(kAsync);
  f.Start();
  f.Push({0, 0});
  f.Pin(3, 10);
  const auto pinned = f.Reports(v1::ShardReport::kPinned);
  REQUIRE(pinned.size() == 1);
  CHECK(pinned[0].pinned().pin() == 3);
  CHECK(pinned[0].pinned().version().count() == 1);
  CHECK(pinned[0].pinned().version().incarnation() == ShardFixture::kIncarnation);
  for (uint64_t clock = 1; clock < 10; ++clock) f.Push({0, clock});
  for (int i = 0; i < 2; ++i) {
    const auto read = PullPin(f, 3);
    REQUIRE(read->there());
    CHECK(read->reply().header.outcome() == v1::OK);
    CHECK(read->reply().header.version().count() == 1);
    CHECK(read->reply().version->weights.get()[0] == 1);
  }
  v1::ControlMessage unpin;
  unpin.mutable_unpin()->set_pin(3);
  f.Control(unpin);
  f.Control(unpin);
  CHECK(PullPin(f, 3)->status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("A pin ends with its lease; a repeat renews the lease, not the version") {
  ShardFixture f(kAsync);
  f.Start();
  f.Pin(1, 10);
  f.Push({0, 0});
  f.clock.Advance(absl::Seconds(9));
  f.shard->Tick();
  f.Reports(v1::ShardReport::kPinned);
  f.Pin(1, 10);
  CHECK(f.Reports(v1::ShardReport::kPinned)[0].pinned().version().count() == 0);
  f.clock.Advance(absl::Seconds(9));
  f.shard->Tick();
  CHECK(PullPin(f, 1)->reply().header.version().count() == 0);
  f.clock.Advance(absl::Seconds(1));
  f.shard->Tick();
  const auto late = PullPin(f, 1);
  CHECK(late->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(late->status().message()), Contains("pin 1") && Contains("lease"));
}

TEST_CASE("A reader of a pin waits for nobody, in sync neither") {
  ShardFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.Start();
  f.Pin(1, 10);
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(9);
  request.set_pin(1);
  request.set_clock(99);  // ignored
  CHECK(f.PullRequest(request)->reply().header.outcome() == v1::OK);
}

TEST_CASE("A pull for the header only sends and counts no weights") {
  ShardFixture f(kAsync);
  f.Start();
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_header_only(true);
  const auto answer = f.PullRequest(request);
  CHECK(answer->reply().header.outcome() == v1::OK);
  CHECK(answer->reply().version == nullptr);
  CHECK(f.shard->counters().bytes_pulled == 0);
  f.Pull(0, 0);
  CHECK(f.shard->counters().bytes_pulled == 40 * sizeof(float));
}

TEST_CASE("The bytes of a pull are counted in the type of its weights") {
  ShardFixture f(kAsync);
  f.Start();
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_dtype(v1::BF16);
  CHECK(f.PullRequest(request)->reply().version != nullptr);
  CHECK(f.shard->counters().bytes_pulled == 40 * sizeof(uint16_t));
}

TEST_CASE("After warm-up updates take no new memory, with readers that come and go") {
  ShardFixture f(kAsync);
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  f.Start();
  std::set<const float*> seen;
  std::vector<PullAnswerPtr> readers;
  for (uint64_t clock = 0; clock < 500; ++clock) {
    f.Push({0, clock});
    readers.push_back(f.Pull(0, clock));
    if (readers.size() > 2) readers.erase(readers.begin());
    seen.insert(readers.back()->reply().version->weights.get());
  }
  // Two versions that readers hold, the current version and the one in the making.
  CHECK(seen.size() <= 4);
}

}  // namespace
}  // namespace weir
