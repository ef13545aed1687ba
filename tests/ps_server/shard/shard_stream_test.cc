// Pushes that are applied while they arrive, pushes that overtake them, and versions that readers hold
// meanwhile.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;
// Three chunk units, of which the last is short.
constexpr int64_t kElements = 2 * kChunkUnit + 1000;

struct Large : ShardFixture {
  explicit Large(v1::ConsistencyConfig::Mode mode = kAsync, uint32_t staleness = 0)
      : ShardFixture(mode, staleness) {
    model.tensors[0].shape = {kElements};
  }
};

// worker:1 reads versions 0, 1 and 2, which worker:0 makes, so that the next push waits for memory.
std::vector<PullAnswerPtr> ReadThree(ShardFixture& f, uint64_t epoch = 1) {
  std::vector<PullAnswerPtr> readers;
  for (uint64_t clock = 0; clock < 2; ++clock) {
    readers.push_back(f.Pull(1, 0, epoch));
    f.Push({0, clock, 0, 0, epoch});
  }
  readers.push_back(f.Pull(1, 0, epoch));
  return readers;
}

std::vector<float> Ones() { return std::vector<float>(kElements, 1.0f); }

TEST_CASE("A push is seen only once it is whole, and its weights by its own worker as they are made") {
  Large f;
  f.Start();
  auto arrival = f.Begin({});
  REQUIRE(arrival->streamed());
  REQUIRE(TakeUnit(*arrival, Ones(), 1).ok());
  CHECK(arrival->making()->weights.get()[kChunkUnit] == 1);
  CHECK(arrival->making()->count == 1);
  CHECK((f.Weights() == std::vector<float>(kElements, 0.0f)));
  REQUIRE(TakeUnit(*arrival, Ones(), 2).ok());
  CHECK_FALSE(arrival->whole());
  REQUIRE(TakeUnit(*arrival, Ones(), 0).ok());
  REQUIRE(arrival->whole());
  const auto made = arrival->making();
  const auto answer = f.Finish(std::move(arrival));
  CHECK(answer->reply().reply.outcome() == v1::OK);
  REQUIRE(answer->reply().made.has_value());
  CHECK(answer->reply().made->outcome() == v1::OK);
  CHECK(answer->reply().made->version().count() == made->count);
  CHECK(answer->reply().made->clocks_size() == 0);
  CHECK(f.Newest()->weights == made->weights);
  CHECK((f.Weights() == Ones()));
}

TEST_CASE("Whatever the pieces, streamed and staged, in each type of values: the bits are the same") {
  const auto type = GENERATE(v1::OptimizerConfig::KIND_SGD, v1::OptimizerConfig::KIND_MOMENTUM,
                             v1::OptimizerConfig::KIND_ADAM);
  const WireType wire =
      GENERATE(WireType(v1::F32), WireType(v1::BF16), WireType(v1::INT4), WireType(v1::TOPK, 410));
  std::vector<std::vector<float>> results;
  for (const auto apply : {v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED}) {
    for (const size_t pieces : {1, 7}) {
      Large f;
      f.model.tensors = {{"a", {70'000}, TensorKind::kParameter, Initializer::HeNormal(3)},
                         {"stats", {777}, TensorKind::kBuffer, Initializer::Zeros()},
                         {"b", {kElements - 70'777}, TensorKind::kParameter, Initializer::Zeros()}};
      f.config.mutable_optimizer()->set_type(type);
      f.config.mutable_optimizer()->set_learning_rate(0.1f);
      f.config.mutable_server()->set_apply(apply);
      f.Start();
      RandomStream random(7, 0), cuts(7, 1);
      for (uint64_t clock = 0; clock < 3; ++clock) {
        std::vector<float> gradient(kElements);
        for (float& g : gradient) g = static_cast<float>(random.NextBelow(1000)) / 1024 - 0.5f;
        auto arrival = f.Begin({0, clock}, wire);
        CHECK(arrival->streamed() == (apply == v1::ServerConfig::APPLY_STREAMED));
        for (uint64_t unit = 0; unit < 3; ++unit) {
          const int64_t first = static_cast<int64_t>(unit) * kChunkUnit;
          const size_t n = static_cast<size_t>(std::min<int64_t>(kChunkUnit, kElements - first));
          std::string bytes(EncodedBytes(wire, n), '\0');
          if (IsQuantised(wire.dtype)) {
            REQUIRE(EncodeBlocks(wire, &gradient[first], bytes.data(), n) == n);
          } else {
            Encode(wire.dtype, &gradient[first], bytes.data(), n);
          }
          // The chunk is cut at odd places into pieces, some empty, each in memory of its own at an odd
          // address.
          std::vector<std::string> copies;
          size_t at = 0;
          for (size_t piece = 0; piece < pieces; ++piece) {
            const size_t length = piece + 1 == pieces ? bytes.size() - at : cuts.NextBelow(9);
            copies.push_back("x" + bytes.substr(at, length));
            at += length;
          }
          std::vector<absl::string_view> views;
          for (const std::string& copy : copies) views.push_back(absl::string_view(copy).substr(1));
          REQUIRE(arrival->TakeChunk(static_cast<uint64_t>(first), views, bytes.size()).ok());
        }
        CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::OK);
      }
      CHECK(f.shard->counters().bytes_pushed == 3 * EncodedBytes(wire, kElements));
      results.push_back(f.Weights());
      CHECK((results.back() == results.front()));
    }
  }
}

TEST_CASE("What is no chunk is refused and changes nothing") {
  Large f;
  f.config.mutable_server()->set_apply(
      GENERATE(v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED));
  f.Start();
  auto arrival = f.Begin({});
  const std::string zeros(kMaxSharedChunkBytes + 4, '\0');
  const auto take = [&](uint64_t first, uint64_t bytes) {
    const absl::string_view piece = absl::string_view(zeros).substr(0, bytes);
    return arrival->TakeChunk(first, absl::MakeConstSpan(&piece, 1), bytes).status();
  };
  constexpr uint64_t kUnitBytes = kChunkUnit * sizeof(float);
  CHECK_FALSE(take(0, 0).ok());
  CHECK_FALSE(take(0, 4).ok());
  CHECK_FALSE(take(0, kUnitBytes - 1).ok());
  CHECK_FALSE(take(1, kUnitBytes).ok());
  CHECK_FALSE(take(2 * kChunkUnit, 1001 * sizeof(float)).ok());
  CHECK_FALSE(take(3 * kChunkUnit, 4).ok());
  CHECK_FALSE(take(uint64_t{1} << 62, kUnitBytes).ok());
  CHECK_FALSE(take(0, kMaxSharedChunkBytes + 4).ok());
  CHECK(take(kChunkUnit, kUnitBytes).ok());
  const absl::Status again = take(0, 2 * kUnitBytes);
  CHECK_THAT(std::string(again.message()),
             Contains("524288 bytes at position 0") && Contains("of which position 65536 came"));
  // After a refused chunk the correct one is accepted.
  CHECK(take(0, kUnitBytes).ok());
  CHECK(take(2 * kChunkUnit, 1000 * sizeof(float)).ok());
  CHECK(arrival->whole());
  CHECK(f.Finish(std::move(arrival))->reply().reply.outcome() == v1::OK);
}

TEST_CASE("A push that is still arriving never delays one that is there: it is sent again, and then staged") {
  Large f;
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  f.Start();
  auto slow = f.Begin({0, 0});
  REQUIRE(slow->streamed());
  REQUIRE(TakeUnit(*slow, Ones(), 0).ok());

  auto fast = f.Begin({1, 0});
  CHECK_FALSE(fast->streamed());
  for (uint64_t unit = 0; unit < 3; ++unit) REQUIRE(TakeUnit(*fast, Ones(), unit).ok());
  CHECK(f.Finish(std::move(fast))->reply().reply.outcome() == v1::OK);
  CHECK((f.Weights() == Ones()));

  CHECK(slow->overtaken());
  CHECK(slow->making() == nullptr);
  REQUIRE(TakeUnit(*slow, Ones(), 1).ok());
  REQUIRE(TakeUnit(*slow, Ones(), 2).ok());
  const auto again = f.Finish(std::move(slow));
  CHECK(again->reply().reply.outcome() == v1::SEND_AGAIN);
  CHECK((f.Weights() == Ones()));
  CHECK(f.Stats().clocks(0).clock() == 0);

  slow = f.Begin({0, 0});
  CHECK_FALSE(slow->streamed());
  REQUIRE(TakeUnit(*slow, Ones(), 0).ok());
  fast = f.Begin({1, 1});
  CHECK(fast->streamed());  // the later push streams now
  REQUIRE(TakeUnit(*fast, Ones(), 0).ok());
  REQUIRE(TakeUnit(*slow, Ones(), 1).ok());
  REQUIRE(TakeUnit(*slow, Ones(), 2).ok());
  CHECK(f.Finish(std::move(slow))->reply().reply.outcome() == v1::OK);
  CHECK(fast->overtaken());
  // The first push adds 1, and the second 1 + 0.9.
  CHECK(f.Weights()[kElements - 1] == 1 + 1.9f);
  // The worker's next push streams again.
  fast = nullptr;
  CHECK(f.Begin({0, 1})->streamed());
}

TEST_CASE("A push that breaks off leaves no trace, slots included, and its buffers are used again") {
  Large f;
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  f.Start();
  const float* made = nullptr;
  for (int i = 0; i < 5; ++i) {
    auto broken = f.Begin({0, 0});
    REQUIRE(broken->streamed());
    REQUIRE(TakeUnit(*broken, std::vector<float>(kElements, 1000.0f), 0).ok());
    const float* const here = broken->making()->weights.get();
    if (made == nullptr) made = here;
    CHECK(here == made);
  }
  for (uint64_t clock = 0; clock < 2; ++clock) {
    PushWhole(*f.shard, 1, f.Header({0, clock}), Ones(), [](const absl::StatusOr<v1::PushReply>& reply) {
      REQUIRE(reply.ok());
      CHECK(reply->outcome() == v1::OK);
    });
  }
  CHECK(f.Weights()[0] == 1 + 1.9f);
}

TEST_CASE("A value that is not finite is found wherever it lies, and the streamed version goes") {
  Large f;
  f.Start();
  std::vector<float> gradient = Ones();
  gradient[kChunkUnit + 17] = -std::numeric_limits<float>::infinity();
  auto arrival = f.Begin({});
  for (uint64_t unit = 0; unit < 3; ++unit) REQUIRE(TakeUnit(*arrival, gradient, unit).ok());
  const auto answer = f.Finish(std::move(arrival));
  CHECK(answer->reply().reply.outcome() == v1::REFUSED);
  CHECK_THAT(answer->reply().reply.reason(), Contains("w[65553] is -Inf at clock 0"));
  CHECK_FALSE(answer->reply().made.has_value());
  CHECK((f.Weights() == std::vector<float>(kElements, 0.0f)));
  CHECK(f.Begin({0, 1})->streamed());
}

TEST_CASE("The weights that a push makes answer its worker's pull only where the bound lets them") {
  Large f(kBounded, 0);
  f.Start();
  const auto push = [&](uint32_t worker, uint64_t clock) {
    const v1::PushRequest header = f.Header({worker, clock});
    absl::optional<bool> likely;
    f.shard->Begin(1, header, [&](absl::StatusOr<PushBegin> begin) {
      likely = f.shard->AnswersAfter(header);
      auto arrival = absl::get<std::unique_ptr<PushArrival>>(*std::move(begin));
      REQUIRE(TakeAll(*arrival, Ones()).ok());
      f.shard->Push(1, std::move(arrival), [&](absl::StatusOr<PushAnswer> answer) {
        REQUIRE(answer.ok());
        CHECK(answer->made.has_value() == *likely);
      });
    });
    return *likely;
  };
  CHECK_FALSE(push(0, 0));
  CHECK(push(1, 0));
  CHECK_FALSE(push(1, 1));
}

TEST_CASE("A worker that joins meanwhile takes the answer back") {
  Large f(kBounded, 0);
  f.Start();
  f.Members(2, {{0}});
  const v1::PushRequest header = f.Header({0, 0});
  std::unique_ptr<PushArrival> arrival;
  f.shard->Begin(1, header, [&](absl::StatusOr<PushBegin> begin) {
    CHECK(f.shard->AnswersAfter(header));
    arrival = absl::get<std::unique_ptr<PushArrival>>(*std::move(begin));
  });
  REQUIRE(TakeAll(*arrival, Ones()).ok());
  f.Members(3, {{0}, {1}});
  const auto answer = f.Finish(std::move(arrival));
  CHECK(answer->reply().reply.outcome() == v1::OK);
  CHECK_FALSE(answer->reply().made.has_value());
}

TEST_CASE("A push arrives at most twice at once; a third try waits for a place") {
  Large f;
  f.Start();
  auto first = f.Begin({0, 0});
  auto second = f.Begin({0, 0});
  int begun = 0, cancelled = 0;
  const auto count = [&](const absl::StatusOr<PushBegin>& begin) {
    ++(begin.ok() ? begun : cancelled);
    if (!begin.ok()) CHECK(begin.status().code() == absl::StatusCode::kCancelled);
  };
  f.shard->Begin(21, f.Header({0, 0}), count);
  f.shard->Begin(22, f.Header({0, 0}), count);
  CHECK(begun == 0);
  f.shard->End(22);
  CHECK(cancelled == 1);
  first = nullptr;
  f.shard->Tick();
  CHECK(begun == 1);
  // Both copies may become whole, but only one counts.
  REQUIRE(TakeAll(*second, Ones()).ok());
  CHECK(f.Finish(std::move(second))->reply().reply.outcome() == v1::OK);
  CHECK(f.shard->counters().pushes_applied == 1);
}

TEST_CASE("The end of a connection ends what waits on it, and nothing else") {
  ShardFixture f(kBounded, 0);
  f.Start();
  f.Push({0, 0});
  auto here = std::make_shared<Answer<PullAnswer>>(), there = std::make_shared<Answer<PullAnswer>>();
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_clock(1);
  f.shard->Pull(21, request, Keep(here));
  f.shard->Pull(22, request, Keep(there));
  f.shard->End(21);
  CHECK(here->status().code() == absl::StatusCode::kCancelled);
  CHECK_FALSE(there->there());
  f.Push({1, 0});
  CHECK(there->reply().header.outcome() == v1::OK);
  CHECK(here->times == 1);
}

TEST_CASE("Slow readers hold two old versions at most; the next push waits for the slowest, for its time") {
  ShardFixture f(kAsync);
  f.config.mutable_server()->set_apply(
      GENERATE(v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED));
  int told = 0, asked = 0;
  f.on_revoke = [&told] { ++told; };
  f.on_short = [&asked] { ++asked; };
  f.Start();
  std::vector<PullAnswerPtr> readers = ReadThree(f);
  CHECK(asked == 0);
  const auto waiting = f.Push({0, 2});
  CHECK_FALSE(waiting->there());
  CHECK(asked > 0);
  // Readers of the current version share it, and no push waits for them.
  CHECK(f.Pull(1, 0)->reply().version->weights == readers.back()->reply().version->weights);
  const auto behind = f.Push({1, 0});
  CHECK_FALSE(behind->there());
  f.clock.Advance(absl::Seconds(4));
  f.shard->Tick();
  CHECK_FALSE(readers[0]->reply().version->revoked);
  const v1::ShardStats stats = f.Stats();
  REQUIRE(stats.waits_size() == 1);
  CHECK(stats.waits(0).calls() == "2 pushes, the first of worker:0 at clock 2");
  CHECK_THAT(stats.waits(0).reason(), Contains("memory of weights") &&
                                          Contains("version 0 (old for 4.0 s): worker:1 on stream 9") &&
                                          Contains("version 2 (the newest): worker:1"));
  CHECK(stats.waits(0).seconds() == 4);
  CHECK(stats.waits(0).awaited(0) == "worker:1");
  CHECK(stats.seconds_since_update() == 4);

  // No reader releases its version.
  f.clock.Advance(absl::Seconds(1));
  f.shard->Tick();
  CHECK(told == 1);
  CHECK(readers[0]->reply().version->revoked);
  CHECK_FALSE(readers[2]->reply().version->revoked);
  REQUIRE((waiting->there() && behind->there()));
  CHECK(waiting->reply().version().count() == 3);
  CHECK(behind->reply().version().count() == 4);  // in the order of arrival
  // While a reader holds a version that is written off, the version is not overwritten.
  for (uint64_t count = 0; count < 3; ++count) {
    CHECK(readers[count]->reply().version->weights.get()[0] == static_cast<float>(count));
  }
  CHECK(f.Weights()[0] == 4);
  CHECK(f.Stats().waits_size() == 0);
  CHECK(f.shard->counters().versions_written_off == 1);
}

TEST_CASE("Who reads on and on without letting go costs each push nothing, once its first time is over") {
  ShardFixture f(kAsync);
  f.Start();
  std::vector<PullAnswerPtr> readers;
  uint64_t clock = 0;
  absl::Duration waited;
  for (int i = 0; i < 20; ++i) {
    const auto read = f.Pull(1, 0);
    if (read->reply().version->may_refer) readers.push_back(read);  // else the reader has a copy
    const auto push = f.Push({0, clock++});
    while (!push->there()) {
      f.clock.Advance(absl::Seconds(1));
      waited += absl::Seconds(1);
      f.shard->Tick();
      REQUIRE(waited < absl::Minutes(1));
    }
  }
  CHECK(readers.size() <= ReaderLimits().max_written_off + ReaderLimits().max_old + 1);
  CHECK(readers.size() < 20);
  CHECK(waited <= ReaderLimits().patience * static_cast<int64_t>(readers.size()));
  // From then on pushes do not wait.
  const absl::Duration until_now = waited;
  for (int i = 0; i < 20; ++i) CHECK(f.Push({0, clock++})->there());
  CHECK(waited == until_now);
}

TEST_CASE("Pins hold up no push; beyond two old versions the oldest pin is taken back") {
  ShardFixture f(kAsync);
  f.Start();
  std::vector<PullAnswerPtr> readers;
  for (uint64_t i = 0; i < 5; ++i) {
    f.Pin(i + 1, 600);
    v1::PullRequest request;
    *request.mutable_caller() = f.CallerOf(9);
    request.set_pin(i + 1);
    readers.push_back(f.PullRequest(request));
    CHECK(f.Push({0, i})->there());
  }
  f.shard->Tick();
  for (uint64_t i = 0; i < 5; ++i) {
    v1::PullRequest request;
    *request.mutable_caller() = f.CallerOf(9);
    request.set_pin(i + 1);
    const auto again = f.PullRequest(request);
    CHECK(again->status().ok() == (i >= 3));
    CHECK(readers[i]->reply().version->revoked == (i < 3));
    CHECK(readers[i]->reply().version->weights.get()[0] == static_cast<float>(i));
  }
}

TEST_CASE("Pushes that are overtaken while they wait are answered at once, though their weights are held") {
  ShardFixture f(kAsync);
  f.Start();
  std::vector<TestMember> members;
  for (uint32_t worker = 0; worker < 8; ++worker) members.push_back({worker});
  f.Members(2, members);
  std::vector<PullAnswerPtr> readers = ReadThree(f, 2);

  // One push streams in, and a staged one is whole before it. A client keeps the weights of the first.
  auto streamed = f.Begin({2, 0, 0, 0, 2});
  REQUIRE(streamed->streamed());
  REQUIRE(TakeAll(*streamed, All(1)).ok());
  const auto dead = streamed->making();
  auto staged = f.Begin({3, 0, 0, 0, 2});
  REQUIRE_FALSE(staged->streamed());
  REQUIRE(TakeAll(*staged, All(1)).ok());
  const auto first = f.Finish(std::move(staged));
  const auto second = f.Finish(std::move(streamed));
  CHECK_FALSE((first->there() || second->there()));
  readers.erase(readers.begin());
  f.shard->Tick();
  REQUIRE(first->there());
  CHECK(first->reply().reply.outcome() == v1::OK);
  REQUIRE(second->there());
  CHECK(second->reply().reply.outcome() == v1::SEND_AGAIN);
  CHECK(dead->count == 3);
  // The weights that the client keeps delay no push, either.
  readers.clear();
  readers.push_back(f.Pull(1, 0, 2));
  for (uint32_t worker = 4; worker < 8; ++worker) {
    CHECK(f.Push({worker, 0, 0, 0, 2})->there());
  }
}

TEST_CASE("Calls that go on together do so one after another, on a stack that is no deeper for it") {
  ShardFixture f(kAsync);
  f.Start();
  constexpr uint32_t kWorkers = 200;
  std::vector<TestMember> members;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) members.push_back({worker});
  f.Members(2, members);
  std::vector<PullAnswerPtr> readers = ReadThree(f, 2);
  std::vector<uintptr_t> depths;
  for (uint32_t worker = 2; worker < kWorkers; ++worker) {
    auto arrival = f.Begin({worker, 0, 0, 0, 2});
    REQUIRE(TakeAll(*arrival, All(1)).ok());
    f.shard->Push(ShardFixture::kSession, std::move(arrival), [&depths](absl::StatusOr<PushAnswer> answer) {
      CHECK(answer.ok());
      const char here = 0;
      depths.push_back(reinterpret_cast<uintptr_t>(&here));
    });
  }
  CHECK(depths.empty());
  readers.clear();
  f.shard->Tick();
  REQUIRE(depths.size() == kWorkers - 2);
  const auto [least, most] = std::minmax_element(depths.begin(), depths.end());
  CHECK(*most - *least < 8192);
}

TEST_CASE("A worker may have so many calls that wait, and no more") {
  ShardFixture f(kBounded, 0);
  f.Start();
  f.Push({0, 0});
  std::vector<PullAnswerPtr> pulls;
  for (int i = 0; i < 2049; ++i) pulls.push_back(f.Pull(0, 1));
  CHECK_FALSE(pulls[2047]->there());
  CHECK(pulls.back()->status().code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(pulls.back()->status().message()), Contains("worker:0 has 2048 calls that wait"));
  // Other workers are not affected, and the waiting calls are answered.
  f.Push({1, 0});
  CHECK(pulls.front()->reply().header.outcome() == v1::OK);
}

TEST_CASE("A push that waits for memory for too long is told so") {
  ShardFixture f(kAsync);
  f.config.mutable_cluster()->set_wait_seconds(3);
  f.Start();
  std::vector<PullAnswerPtr> readers = ReadThree(f);
  const auto waiting = f.Push({0, 2});
  f.clock.Advance(absl::Seconds(3));
  f.shard->Tick();
  CHECK(waiting->status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(waiting->status().message()),
             Contains("clock 2 waited 3s for memory of weights") && Contains("worker:1"));
  // The push was not applied, and may come again.
  readers.clear();
  CHECK(f.Push({0, 2})->reply().version().count() == 3);
}

TEST_CASE("A commit waits for memory, too") {
  ShardFixture f(v1::ConsistencyConfig::MODE_SYNC);
  f.Start();
  std::vector<PullAnswerPtr> readers;
  PushReplyPtr last;
  for (uint64_t step = 0; step < 3; ++step) {
    readers.push_back(f.Pull(0, step));
    f.Push({0, step, 0});
    last = f.Push({1, step, 1});
    f.Commit(step, {0, 1});
  }
  CHECK_FALSE(last->there());
  CHECK(f.Stats().version().count() == 2);
  readers.erase(readers.begin());
  f.shard->Tick();
  REQUIRE(last->there());
  CHECK(last->reply().version().count() == 3);
  CHECK(f.Weights()[0] == 3);
}

}  // namespace
}  // namespace weir
