// A shard in bounded and async: pushes are applied as they arrive.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

TEST_CASE("A push is applied on arrival and the next pull holds it") {
  ShardFixture f(kAsync);
  f.Start();
  const auto pushed = f.Push({});
  REQUIRE(pushed->there());
  CHECK(pushed->reply().outcome() == v1::OK);
  CHECK(pushed->reply().version().count() == 1);
  CHECK(pushed->reply().version().incarnation() == ShardFixture::kIncarnation);
  CHECK(pushed->reply().staleness() == 0);
  const auto pulled = f.Pull(0, 1);
  REQUIRE(pulled->there());
  CHECK(pulled->reply().header.outcome() == v1::OK);
  CHECK(pulled->reply().header.version().count() == 1);
  CHECK(pulled->reply().header.elements() == 40);
  REQUIRE(pulled->reply().header.clocks_size() == 2);
  CHECK(pulled->reply().header.clocks(0).clock() == 1);
  CHECK(pulled->reply().header.clocks(1).clock() == 0);
  REQUIRE(pulled->reply().version != nullptr);
  CHECK(pulled->reply().version->weights.get()[39] == 1);
}

TEST_CASE("Only who asks is told the clocks of all workers") {
  ShardFixture f(kAsync);
  f.Start();
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  const bool asks = GENERATE(true, false);
  request.set_with_clocks(asks);
  const auto pulled = f.PullRequest(request);
  REQUIRE(pulled->there());
  CHECK(pulled->reply().header.outcome() == v1::OK);
  CHECK(pulled->reply().header.clocks_size() == (asks ? 2 : 0));
}

TEST_CASE("Before its model and its members are there a shard asks for a retry") {
  ShardFixture f(kAsync);
  f.Create();
  v1::PushRequest header;
  *header.mutable_caller() = f.CallerOf(0);
  CHECK(f.PushHeader(header, {})->status().code() == absl::StatusCode::kUnavailable);
  CHECK(f.Pull(0, 0)->status().code() == absl::StatusCode::kUnavailable);
  f.Start();
  // An epoch that the shard does not know yet.
  TestPush late{2};
  late.epoch = 2;
  CHECK(f.Push(late)->status().code() == absl::StatusCode::kUnavailable);
  CHECK(f.Pull(2, 0, 2)->status().code() == absl::StatusCode::kUnavailable);
  f.Members(2, {{0}, {1}, {2}});
  CHECK(f.Push(late)->reply().outcome() == v1::OK);
}

TEST_CASE("A repeated push gets its recorded answer and changes nothing") {
  ShardFixture f(kAsync);
  f.Start();
  std::vector<v1::PushRequest> headers;
  std::vector<std::string> answers;
  for (uint64_t clock = 0; clock < 10; ++clock) {
    headers.push_back(f.Header({0, clock}));
    answers.push_back(f.PushHeader(headers.back(), {})->reply().SerializeAsString());
    f.Push({1, clock});
  }
  const auto before = f.Weights();
  for (uint64_t clock = 0; clock < 10; ++clock) {
    TestPush other;
    other.value = 1000;  // the repeat's values do not matter
    CHECK(f.PushHeader(headers[clock], other)->reply().SerializeAsString() == answers[clock]);
  }
  CHECK(f.Weights() == before);
  CHECK(f.shard->counters().version == 20);
  CHECK(f.shard->counters().pushes_repeated == 10);
}

TEST_CASE("A push so old that its answer is not on record is still not applied again") {
  ShardFixture f(kAsync);
  f.Start();
  for (uint64_t clock = 0; clock < 100; ++clock) f.Push({0, clock});
  CHECK(f.Push({0, 99})->reply().outcome() == v1::OK);
  CHECK(f.Push({0, 100 - 2 * kHoldWindow})->reply().outcome() == v1::OK);
  CHECK_FALSE(f.Push({0, 0})->value->ok());
  CHECK(f.Weights() == All(100));
}

TEST_CASE("Reordered pushes are held and applied in order") {
  ShardFixture f(kAsync);
  f.Start();
  const auto two = f.Push({0, 2});
  const auto one = f.Push({0, 1});
  const auto one_again = f.Push({0, 1});
  const auto other = f.Push({1, 0});  // another worker's pushes are not delayed
  CHECK(other->there());
  CHECK_FALSE(two->there());
  CHECK_FALSE(one->there());
  CHECK_FALSE(one_again->there());
  f.Push({0, 0});
  REQUIRE(two->there());
  REQUIRE(one->there());
  REQUIRE(one_again->there());
  CHECK(one->reply().version().count() == 3);
  CHECK(two->reply().version().count() == 4);
  CHECK(one_again->reply().SerializeAsString() == one->reply().SerializeAsString());
  CHECK(f.Weights() == All(4));
  CHECK((one->times == 1 && two->times == 1 && one_again->times == 1));
}

TEST_CASE("A push far ahead is refused at once, naming clock and version") {
  ShardFixture f(kAsync);
  f.Start();
  CHECK_FALSE(f.Push({0, kHoldWindow})->there());
  const auto far = f.Push({0, kHoldWindow + 1});
  REQUIRE(far->there());
  CHECK(far->status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(far->status().message()), Contains("clock 17") && Contains("version 0"));
  CHECK(f.Push({0, 0, 1})->status().code() == absl::StatusCode::kInvalidArgument);  // a part
  CHECK(f.Weights() == All(0));
}

TEST_CASE("A held push whose predecessors do not come ends with its deadline") {
  ShardFixture f(kAsync);
  f.Start();
  const auto held = f.Push({0, 3});
  f.clock.Advance(absl::Seconds(59));
  f.shard->Tick();
  CHECK_FALSE(held->there());
  f.clock.Advance(absl::Seconds(1));
  f.shard->Tick();
  REQUIRE(held->there());
  CHECK(held->status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(held->status().message()), Contains("clock 3"));
  for (uint64_t clock = 0; clock < 4; ++clock) CHECK(f.Push({0, clock})->reply().outcome() == v1::OK);
}

TEST_CASE("Who is not a member changes nothing and is told so") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush stranger{5};
  CHECK(f.Push(stranger)->reply().outcome() == v1::FENCED);
  TestPush older{0};
  older.incarnation = 99;
  CHECK(f.Push(older)->reply().outcome() == v1::FENCED);
  CHECK_THAT(f.Push(older)->reply().reason(), Contains("worker 0") && Contains("99") && Contains("epoch 1"));
  const auto pulled = f.Pull(5, 0);
  CHECK(pulled->reply().header.outcome() == v1::FENCED);
  CHECK(pulled->reply().version == nullptr);
  CHECK(f.Weights() == All(0));
  CHECK(f.Stats().clocks(0).clock() == 0);
}

TEST_CASE("Parked calls of a removed worker are answered as fenced, those that waited for it go on") {
  ShardFixture f(kBounded, 0);
  f.Start();
  f.Push({0, 0});
  f.Push({1, 0});
  f.Push({0, 1});
  const auto held = f.Push({1, 2});
  const auto own = f.Pull(1, 2);
  const auto waiting = f.Pull(0, 2);
  CHECK_FALSE((held->there() || own->there() || waiting->there()));
  CHECK(f.shard->counters().parked_pulls == 2);
  f.Members(2, {{0}});
  REQUIRE((held->there() && own->there() && waiting->there()));
  CHECK(held->reply().outcome() == v1::FENCED);
  CHECK_THAT(held->reply().reason(), Contains("worker:1") && Contains("epoch 2"));
  CHECK(own->reply().header.outcome() == v1::FENCED);
  CHECK(waiting->reply().header.outcome() == v1::OK);
  CHECK(f.shard->counters().parked_pulls == 0);
  CHECK(f.Push({1, 1})->reply().outcome() == v1::FENCED);
  CHECK(f.Weights() == All(3));
}

TEST_CASE("A restarted worker is another one: its old incarnation is fenced, its clocks begin at the floor") {
  ShardFixture f(kBounded, 1);
  f.Start();
  for (uint64_t clock = 0; clock < 3; ++clock) f.Push({0, clock});
  for (uint64_t clock = 0; clock < 2; ++clock) f.Push({1, clock});
  TestMember again{0, 500};
  again.joining = true;
  f.Reports(v1::ShardReport::kMembership);
  f.Members(2, {again, {1}});
  auto acks = f.Reports(v1::ShardReport::kMembership);
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].membership().epoch() == 2);
  CHECK(acks[0].membership().floor() == 2);
  again.joining = false;
  again.start_clock = 2;
  f.Members(3, {again, {1}});
  CHECK(f.Push({0, 3})->reply().outcome() == v1::FENCED);
  TestPush push{0, 2};
  push.incarnation = 500;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  // A clock before the worker's start has no answer in this incarnation.
  push.clock = 1;
  CHECK_FALSE(f.Push(push)->value->ok());
  CHECK(f.Weights() == All(6));
}

TEST_CASE("Only a higher membership epoch counts") {
  ShardFixture f(kAsync);
  f.Start();
  f.Members(5, {{0}});
  f.Reports(v1::ShardReport::kMembership);
  f.Members(4, {{0}, {1}});
  f.Members(5, {{0}, {1}});
  CHECK(f.Reports(v1::ShardReport::kMembership).empty());
  CHECK(f.Push({1, 0})->reply().outcome() == v1::FENCED);
}

TEST_CASE("An idle worker is a member, but nobody waits for it") {
  ShardFixture f(kBounded, 0);
  f.Start();
  f.Push({0, 0});
  const auto waiting = f.Pull(0, 1);
  CHECK_FALSE(waiting->there());
  TestMember idle{1};
  idle.idle = true;
  f.Members(2, {{0}, idle});
  CHECK(waiting->there());
  CHECK(f.Pull(1, 0)->reply().header.outcome() == v1::OK);
  for (uint64_t clock = 1; clock < 4; ++clock) f.Push({0, clock});
  // The worker works again, and starts at the slowest live clock.
  TestMember back{1};
  back.joining = true;
  f.Reports(v1::ShardReport::kMembership);
  f.Members(3, {{0}, back});
  CHECK(f.Reports(v1::ShardReport::kMembership)[0].membership().floor() == 4);
  f.Members(4, {{0}, {1, 0, 4}});
  CHECK(f.Push({1, 4})->reply().outcome() == v1::OK);
}

TEST_CASE("A batch is applied once, whoever does it again") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush push{0, 0};
  push.batch = 7;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  push.worker = 1;
  const auto again = f.Push(push);
  CHECK(again->reply().outcome() == v1::DUPLICATE_BATCH);
  CHECK_THAT(again->reply().reason(), Contains("batch 7"));
  CHECK(again->reply().version().count() == 1);
  CHECK(f.Push(push)->reply().outcome() == v1::DUPLICATE_BATCH);  // recorded
  CHECK(f.Weights() == All(1));
  CHECK(f.Stats().clocks(1).clock() == 1);  // the clock counts as completed
  push.clock = 1;
  push.batch = 8;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  CHECK(f.shard->counters().pushes_refused == 1);
}

TEST_CASE("A gradient that is not finite is refused by name, leaves no trace, and is completed") {
  ShardFixture f(kBounded, 0);
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_ADAM);
  f.config.mutable_optimizer()->set_learning_rate(0.1);
  f.model.tensors = {{"first", {20}, TensorKind::kParameter, Initializer::HeNormal(3)},
                     {"second", {30}, TensorKind::kParameter, Initializer::Zeros()}};
  f.Start();
  f.Push({0, 0});
  f.Push({1, 0});
  const auto waiting = f.Pull(1, 2);
  f.Push({1, 1});
  CHECK_FALSE(waiting->there());
  const std::vector<float> before = f.Weights();

  TestPush bad{0, 1};
  bad.batch = 3;
  bad.bad_element = 25;
  const auto refused = f.Push(bad);
  CHECK(refused->reply().outcome() == v1::REFUSED);
  CHECK(refused->reply().reason() ==
        "worker 0 (worker:0): the gradient of second[5] is NaN at clock 1, batch 3 (examples 24 to 24 in the "
        "job's order)");
  CHECK(refused->reply().version().count() == 3);
  CHECK(f.Weights() == before);
  CHECK(waiting->there());  // the clock was completed, so no pull waits for it
  CHECK(f.Push(bad)->reply().SerializeAsString() == refused->reply().SerializeAsString());
  // The batch of the refused push counts as done.
  TestPush again{1, 2};
  again.batch = 3;
  CHECK(f.Push(again)->reply().outcome() == v1::DUPLICATE_BATCH);
  TestPush good{1, 3};
  good.value = 0.25f;
  CHECK(f.Push(good)->reply().outcome() == v1::OK);

  // The slots are unchanged, too: without the refused push the next push has the same result.
  ShardFixture clean(kBounded, 0);
  clean.config = f.config;
  clean.model = f.model;
  clean.Start();
  clean.Push({0, 0});
  clean.Push({1, 0});
  clean.Push({1, 1});
  TestPush next{1, 2};
  next.value = 0.25f;
  clean.Push(next);
  CHECK(f.Weights() == clean.Weights());
}

TEST_CASE("A push that says that it is to be refused is, without its gradient") {
  ShardFixture f(GENERATE(kBounded, kAsync), 0);
  f.Start();
  f.Push({1, 0});
  const auto waiting = f.Pull(1, 2);
  TestPush push{0, 0};
  push.batch = 7;
  v1::PushRequest header = f.Header(push);
  header.set_refused("worker 0 (worker:0): the gradient of w[3] is NaN at clock 0");
  const auto refused = f.PushHeader(header, push);
  CHECK(refused->reply().outcome() == v1::REFUSED);
  CHECK(refused->reply().reason() == header.refused());
  CHECK(f.PushHeader(header, push)->reply().SerializeAsString() == refused->reply().SerializeAsString());
  CHECK(f.Weights() == All(1));
  // No pull waits for the clock, its batch counts as done, and the worker continues.
  CHECK(f.Stats().clocks(0).clock() == 1);
  push.clock = 1;
  CHECK(f.Push(push)->reply().outcome() == v1::DUPLICATE_BATCH);
  push.clock = 2;
  push.batch = 8;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  CHECK(f.Stats().pushes_refused() == 2);
  // The text has a limit.
  header.set_clock(3);
  header.set_refused(std::string(1001, 'x'));
  CHECK(f.PushHeader(header, push)->status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A push from a version of another incarnation of the shard is stale, and its clock is complete") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush push{0, 0};
  push.base_incarnation = 76;
  const auto stale = f.Push(push);
  CHECK(stale->reply().outcome() == v1::STALE_VERSION);
  CHECK_THAT(stale->reply().reason(), Contains("76") && Contains("77"));
  CHECK(f.Weights() == All(0));
  CHECK(f.Stats().pushes_refused() == 1);
  // A repeat gets the recorded answer, even if its header differs now.
  push.base_incarnation.reset();
  CHECK(f.Push(push)->reply().outcome() == v1::STALE_VERSION);
  CHECK(f.Pull(0, 1)->there());
  // The batch was not applied, so it may come again.
  push.clock = 1;
  push.batch = 3;
  push.base_incarnation = 76;
  CHECK(f.Push(push)->reply().outcome() == v1::STALE_VERSION);
  push.clock = 2;
  push.base_incarnation.reset();
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(1));
}

TEST_CASE("A push from a version that is yet to come is refused") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush push{0, 0};
  push.base = 1;
  CHECK(f.Push(push)->status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(f.Weights() == All(0));
  push.base = 0;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
}

TEST_CASE("Staleness is counted by the server: the version just before, minus the one that was pulled") {
  ShardFixture f(kAsync);
  f.Start();
  for (uint64_t clock = 0; clock < 5; ++clock) f.Push({0, clock});
  TestPush late{1, 0};
  late.base = 2;
  const auto pushed = f.Push(late);
  CHECK(pushed->reply().staleness() == 3);
  const v1::ShardStats stats = f.Stats();
  CHECK(stats.version().count() == 6);
  CHECK(stats.pushes_applied() == 6);
  CHECK(stats.version_staleness().counts(0) == 5);
  CHECK(stats.version_staleness().counts(3) == 1);
  CHECK(stats.lead().max() == 5);  // worker 0 after its fifth push, worker 1 at 0
  CHECK(stats.bytes_pushed() == 6 * 40 * sizeof(float));
}

TEST_CASE("The bound holds at its edge on the shard") {
  const uint32_t s = GENERATE(0, 1, 3);
  ShardFixture f(kBounded, s);
  f.Start();
  for (uint64_t clock = 0; clock <= s; ++clock) {
    f.Push({0, clock});
  }
  CHECK(f.Pull(0, s)->there());
  const auto over = f.Pull(0, s + 1);
  CHECK_FALSE(over->there());
  CHECK(f.Stats().waits(0).reason() == "worker:1 (at clock 0)");
  f.Push({1, 0});
  REQUIRE(over->there());
  CHECK(over->reply().header.version().count() == s + 2);
}

TEST_CASE("A pull that waits too long says for whom") {
  ShardFixture f(kBounded, 1);
  f.Start();
  for (uint64_t clock = 0; clock < 3; ++clock) f.Push({0, clock});
  f.Push({1, 0});
  const auto waiting = f.Pull(0, 3);
  f.clock.Advance(absl::Seconds(59));
  f.shard->Tick();
  CHECK_FALSE(waiting->there());
  f.clock.Advance(absl::Seconds(1));
  f.shard->Tick();
  REQUIRE(waiting->there());
  CHECK(waiting->status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(waiting->status().message()),
             Contains("clock 3") && Contains("1m") && Contains("worker:1 (at clock 1)"));
  CHECK(f.shard->counters().parked_pulls == 0);
  f.Push({1, 1});
  CHECK(waiting->times == 1);
}

TEST_CASE("The end of the job answers everything, and everything after it") {
  ShardFixture f(kBounded, 0);
  f.Start();
  f.Push({0, 0});
  const auto held = f.Push({1, 3});
  const auto waiting = f.Pull(0, 1);
  f.Shutdown("ps:1 at 10.0.0.2:2222 was lost");
  REQUIRE((held->there() && waiting->there()));
  CHECK(held->reply().outcome() == v1::JOB_OVER);
  CHECK(held->reply().reason() == "ps:1 at 10.0.0.2:2222 was lost");
  CHECK(waiting->reply().header.outcome() == v1::JOB_OVER);
  CHECK(f.Push({0, 1})->reply().outcome() == v1::JOB_OVER);
  CHECK(f.Pull(1, 0)->reply().header.outcome() == v1::JOB_OVER);
  f.Shutdown("another reason");
  CHECK(f.Push({0, 1})->reply().reason() == "ps:1 at 10.0.0.2:2222 was lost");
  CHECK((held->times == 1 && waiting->times == 1));
}

TEST_CASE("A shard that goes answers what it had parked") {
  ShardFixture f(kBounded, 0);
  f.Start();
  const auto held = f.Push({0, 1});
  const auto waiting = f.Pull(0, 1);
  f.shard.reset();
  REQUIRE((held->there() && waiting->there()));
  CHECK(held->reply().outcome() == v1::JOB_OVER);
  CHECK(waiting->reply().header.outcome() == v1::JOB_OVER);
}

TEST_CASE("A push that does not fit is refused before memory is taken for it") {
  ShardFixture f(kAsync);
  f.Start();
  v1::PushRequest header = f.Header({});
  header.set_elements(41);
  CHECK_THAT(std::string(f.PushHeader(header, {})->status().message()), Contains("41") && Contains("40"));
  header.set_elements(uint64_t{1} << 63);
  CHECK(f.PushHeader(header, {})->status().code() == absl::StatusCode::kInvalidArgument);
  header = f.Header({});
  header.set_examples(0);
  CHECK_THAT(std::string(f.PushHeader(header, {})->status().message()), Contains("examples"));
  header = f.Header({});
  header.mutable_caller()->set_model_hash(1);
  CHECK_THAT(std::string(f.PushHeader(header, {})->status().message()), Contains("model_hash"));
  v1::PullRequest pull;
  *pull.mutable_caller() = f.CallerOf(0);
  pull.mutable_caller()->set_model_hash(1);
  CHECK(f.PullRequest(pull)->status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
