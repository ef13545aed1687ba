// The client's data path against scripted servers: what goes over the wire, and how the client handles
// answers and faults.
#include "client/client.h"

#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/client/client_fixture.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "scripted");

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- pull, push, both
// ----------------------------------------------------------------------------------------------

TEST_CASE("a pull of several chunks a shard fills all tensors") {
  FakeCluster::Options options = ClientFixture::Large();
  options.start_clock = 3;
  ClientFixture f(options);
  auto client = f.Join();
  const PullResult result = f.Pull(*client, 3);
  CHECK(result.versions == std::vector<uint64_t>{3, 3});
  CHECK(result.incarnations == std::vector<uint64_t>{40, 40});
  CHECK_FALSE(result.past);
  CHECK(f.WeightsAre(3));
  const v1::PullRequest request = f.cluster.pulls(1).at(0);
  CHECK(request.caller().worker() == 0);
  CHECK(request.caller().incarnation() == 7);
  CHECK(request.caller().epoch() == 1);
  CHECK(request.caller().model_hash() == f.model.Hash());
  CHECK(client->model().Hash() == f.model.Hash());
  CHECK(client->worker() == 0);
}

TEST_CASE("a push of several chunks brings each shard its part of the gradient") {
  ClientFixture f(ClientFixture::Large());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const auto result = client->Push(work, base, f.Gradient()).Get();
  REQUIRE(result.ok());
  CHECK(result->applied);
  CHECK(result->reason.empty());
  const auto pushes = f.cluster.pushes();
  REQUIRE(pushes.size() == 2);
  for (const FakeCluster::Push& push : pushes) {
    CHECK((push.gradient == f.GradientOf(push.shard)));
    CHECK(push.messages == 4);
    CHECK(push.largest_message <= (1 << 20) + 128);
    CHECK(push.header.clock() == 0);
    CHECK(push.header.batch_plus_one() == 1);
    CHECK(push.header.examples() == 10);
    CHECK(push.header.base().count() == 0);
    CHECK(push.header.base().incarnation() == 40);
    CHECK(push.header.caller().incarnation() == 7);
  }
}

TEST_CASE("a push and the next pull are one exchange") {
  ClientFixture f(ClientFixture::Large());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const auto result = client->PushPull(work, base, f.Gradient(), f.Weights()).Get();
  REQUIRE(result.ok());
  CHECK(result->push.applied);
  CHECK(result->pull.versions == std::vector<uint64_t>{1, 1});
  CHECK(f.WeightsAre(1));
  const auto pushes = f.cluster.pushes();
  REQUIRE(pushes.size() == 2);
  for (const FakeCluster::Push& push : pushes) CHECK((push.gradient == f.GradientOf(push.shard)));
  // Only the first pull was sent apart.
  CHECK(f.cluster.pulls(0).size() == 1);
  CHECK(f.cluster.pulls(1).size() == 1);
}

TEST_CASE("one call orders a push, a pull, or both") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  CHECK(Message(client->Exchange({}).Get().status()) == "an exchange needs a push or a pull");
  const ExchangeOrder::Pull into_tensors{0, false, f.Weights(), nullptr};
  const auto base = client->Exchange({std::nullopt, into_tensors}).Take();
  REQUIRE(base.ok());
  CHECK(base->pull.versions == std::vector<uint64_t>{0, 0});
  CHECK(base->weights.tensors() == 0);
  CHECK_FALSE(base->push.applied);
  const ExchangeOrder::Push push{work, base->pull, f.Gradient(), nullptr};
  const auto astray = client->Exchange({push, into_tensors}).Take();
  CHECK(astray.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(astray.status()) ==
        "with a push at clock 0 goes the pull at the next, 1, and not the one at 0");
  CHECK(f.cluster.pushes().empty());
  const auto both = client->Exchange({push, ExchangeOrder::Pull{1, true, {}, nullptr}}).Take();
  REQUIRE(both.ok());
  CHECK(both->push.applied);
  CHECK(both->pull.versions.empty());
  CHECK(both->weights.pull().versions == std::vector<uint64_t>{1, 1});
  CHECK(both->weights.tensors() == client->model().tensors.size());
}

TEST_CASE("a push's weight travels to each shard, if it can be one and ps:0 knows it") {
  const bool sync = GENERATE(true, false);
  FakeCluster::Options options = sync ? ClientFixture::Small() : Async(ClientFixture::Small());
  ClientFixture f(options);
  if (!sync) f.cluster.AddRange(1, 0, 5);
  const uint32_t minor = GENERATE(9, 10);
  f.cluster.edit_join = [minor](v1::JoinReply* reply) {
    reply->mutable_protocol()->set_major(1);
    reply->mutable_protocol()->set_minor(minor);
  };
  auto client = f.Join();
  ExchangeOrder::Push push{f.NextWork(*client), f.Pull(*client, 0), f.Gradient(), nullptr};
  const auto refused = [&](double weight) {
    push.weight = weight;
    return client->Exchange({push, std::nullopt}).Take().status();
  };
  for (const double weight : {-1.0, std::nan("")}) {
    CHECK(refused(weight).code() == absl::StatusCode::kInvalidArgument);
  }
  if (!sync || minor == 9) {
    const absl::Status status = refused(2.5);
    CHECK(status.code() ==
          (sync ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kInvalidArgument));
    CHECK_THAT(Message(status), Contains(sync ? "needs version 1.10 of the protocol" : "consistency.mode"));
    CHECK(f.cluster.pushes().empty());
    push.weight = 0;
  } else {
    push.weight = 2.5;
  }
  REQUIRE(client->Exchange({push, std::nullopt}).Take().ok());
  const auto pushes = f.cluster.pushes();
  REQUIRE(pushes.size() == 2);
  for (const FakeCluster::Push& sent : pushes) {
    CHECK(sent.header.weight() == push.weight);
    CHECK(sent.header.examples() == 10);
  }
}

TEST_CASE("shards without elements take part") {
  FakeCluster::Options options;
  options.model.tensors.push_back({"w", {20}, TensorKind::kParameter, {}});
  options.shards = 4;
  ClientFixture f(options);
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  CHECK(f.WeightsAre(0));
  const auto result = client->PushPull(work, base, f.Gradient(), f.Weights()).Get();
  REQUIRE(result.ok());
  CHECK(result->push.applied);
  CHECK(f.WeightsAre(1));
  CHECK(f.cluster.pushes().size() == 4);
}

TEST_CASE("several pushes may be in flight") {
  FakeCluster::Options options = ClientFixture::Small();
  options.parts = 3;
  ClientFixture f(options);
  auto client = f.Join();
  const PullResult base = f.Pull(*client, 0);
  std::vector<Future<PushResult>> pushes;
  for (uint32_t part = 0; part < 3; ++part) {
    const Work work = f.NextWork(*client);
    CHECK(work.part == part);
    CHECK(work.last_of_clock == (part == 2));
    pushes.push_back(client->Push(work, base, f.Gradient()));
    if (part < 2) CHECK_FALSE(pushes[0].ready());
  }
  for (const auto& push : pushes) {
    REQUIRE(push.Get().ok());
    CHECK(push.Get()->applied);
  }
  CHECK(f.NextWork(*client).clock == 1);
}

TEST_CASE("a shard is told which pushes it, or an earlier incarnation of it, has answered") {
  FakeCluster::Options options = ClientFixture::Small();
  options.sync = false;
  ClientFixture f(options);
  f.cluster.AddRange(1, 0, 3);
  auto client = f.Join();
  for (uint64_t clock = 0; clock < 3; ++clock) {
    const Work work = f.NextWork(*client);
    REQUIRE(work.clock == clock);
    const PullResult base = f.Pull(*client, clock);
    REQUIRE(client->Push(work, base, f.Gradient()).Get().ok());
  }
  const std::vector<FakeCluster::Push> pushes = f.cluster.pushes();
  CHECK(pushes.size() == 6);
  for (const FakeCluster::Push& push : pushes) CHECK(push.header.answered_clock() == push.header.clock());
  for (const v1::PullRequest& pull : f.cluster.pulls(1)) CHECK(pull.answered_clock() == pull.clock());
}

TEST_CASE("a shard that was restored is told at once, though this worker has nothing to ask there") {
  FakeCluster::Options options = ClientFixture::Small();
  options.sync = false;
  ClientFixture f(options);
  f.cluster.AddRange(1, 0, 1);
  f.cluster.SetShardIncarnations({11, 12});
  auto client = f.Join();
  f.cluster.SetShardIncarnations({11, 13});  // the worker has had no answer yet
  const Work work = f.NextWork(*client);
  REQUIRE(client->Push(work, f.Pull(*client, 0), f.Gradient()).Get().ok());
  f.cluster.SetMembers({{0, 7}, {1, 8}});
  f.cluster.SetShardIncarnations({11, 14});
  f.cluster.AwaitPulls(1, 2);
  const std::vector<v1::PullRequest> pulls = f.cluster.pulls(1);
  REQUIRE(pulls.size() == 2);
  CHECK(pulls[1].header_only());
  CHECK(pulls[1].answered_clock() == 1);
  CHECK(pulls[1].clock() == 1);
  CHECK(f.cluster.pulls(0).size() == 1);
}

// ---- what is refused before it leaves
// ------------------------------------------------------------------------------

TEST_CASE("a small gradient is found not to be finite before the first byte leaves") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  std::string expected = "dense_0/weight[12] is NaN";
  if (GENERATE(true, false)) {
    f.gradient[0][12] = std::numeric_limits<float>::quiet_NaN();
  } else {
    f.gradient[1][9] = std::numeric_limits<float>::infinity();
    expected = "dense_0/bias[9] is Inf";
  }
  const auto push = client->Push(work, base, f.Gradient()).Get();
  CHECK(push.status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(Message(push.status()), Contains("training diverged: ") && Contains(expected));
  CHECK(f.cluster.pushes().empty());
  CHECK(client->NextWork().status() == push.status());
}

TEST_CASE("a bad gradient is refused before the first byte leaves") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  std::string expected;
  std::vector<ConstTensor> gradient = f.Gradient();
  Work wrong_work = work;
  PullResult wrong_base = base;
  SECTION("unknown tensor") {
    gradient[0].name = "dense_1/weight";
    expected = "the model has no tensor 'dense_1/weight'";
  }
  SECTION("wrong length") {
    gradient[0].values.remove_suffix(1);
    expected = "tensor 'dense_0/weight' is given with 199 values; its shape [20, 10] has 200";
  }
  SECTION("bfloat16 where pushes are float32") {
    gradient = f.RoundedGradient();
    expected =
        "the gradient is given as bfloat16, but pushes of this job travel as float32; give its values as "
        "float32, or set wire.push_dtype or wire.dtype to bf16";
  }
  SECTION("no examples") {
    wrong_work.examples = 0;
    expected = "a push needs work of at least 1 example";
  }
  SECTION("no pull before") {
    wrong_base = PullResult();
    expected =
        "`base` is not the result of a pull of weights, so no server could tell which weights the gradient "
        "was computed from";
  }
  const auto push = client->Push(wrong_work, wrong_base, gradient).Get();
  CHECK(push.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(push.status()) == expected);
  const auto both = client->PushPull(wrong_work, wrong_base, gradient, f.Weights()).Get();
  CHECK(Message(both.status()) == expected);
  CHECK(f.cluster.pushes().empty());
  // The client goes on.
  CHECK(client->Push(work, base, f.Gradient()).Get().ok());
}

TEST_CASE("a reader pulls, and does nothing else") {
  ClientFixture f(ClientFixture::Small());
  f.options.reader = true;
  auto client = f.Join();
  CHECK(f.cluster.joins().at(0).role() == v1::READER);
  CHECK(client->NextWork().status().code() == absl::StatusCode::kFailedPrecondition);
  const PullResult base = f.Pull(*client, 0);
  Work work;
  work.examples = 1;
  CHECK(client->Push(work, base, f.Gradient()).Get().status().code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(f.cluster.pushes().empty());
}

// ---- retries
// -------------------------------------------------------------------------------------------------------

TEST_CASE("a push whose reply is lost is sent again under the same key") {
  const bool with_pull = GENERATE(false, true);
  FakeCluster::Options options = ClientFixture::Small();
  options.end_streams = GENERATE(false, true);
  ClientFixture f(options);
  f.cluster.on_push_reply = [](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1 && nth == 1) return kUnavailable;
    return std::nullopt;
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  f.Push(*client, work, base, with_pull);
  const std::vector<FakeCluster::Push> tries = f.PushesOf(1);
  REQUIRE(tries.size() == 2);
  CHECK(tries[0].header.SerializeAsString() == tries[1].header.SerializeAsString());
  CHECK((tries[0].gradient == tries[1].gradient));
}

TEST_CASE("a request that is lost is sent again") {
  FakeCluster::Options options = ClientFixture::Small();
  options.end_streams = GENERATE(false, true);
  ClientFixture f(options);
  f.cluster.on_push = [](uint32_t, size_t nth) -> std::optional<grpc::Status> {
    if (nth <= 2) return kUnavailable;
    return std::nullopt;
  };
  f.cluster.on_pull = [](uint32_t, size_t nth) -> std::optional<grpc::Status> {
    if (nth == 1) return grpc::Status(grpc::StatusCode::CANCELLED, "the server's own");
    return std::nullopt;
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  CHECK(f.WeightsAre(0));
  CHECK(client->Push(work, base, f.Gradient()).Get().ok());
  CHECK(f.cluster.pushes().size() == 2);
}

TEST_CASE("a pull that breaks off is made anew, and the push before it is not") {
  std::atomic<int> broken{0};
  FakeCluster::Options options = ClientFixture::Large();
  options.end_streams = GENERATE(false, true);
  ClientFixture f(options);
  f.cluster.on_pull_middle = [&](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 0 && broken++ % 2 == 0) return kUnavailable;
    return std::nullopt;
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  CHECK(f.WeightsAre(0));
  const auto result = client->PushPull(work, base, f.Gradient(), f.Weights()).Get();
  REQUIRE(result.ok());
  CHECK(f.WeightsAre(1));
  CHECK(f.cluster.pushes().size() == 2);
  CHECK(f.cluster.pulls(0).size() == 3);
  CHECK(f.cluster.pulls(0).back().clock() == 1);
  CHECK(f.cluster.pulls(0).back().answered_clock() == 1);
  CHECK(f.cluster.pulls(1).size() == 1);
}

TEST_CASE("a server that comes back in time is not missed") {
  FakeCluster::Options options = ClientFixture::Small();
  options.unix_sockets = true;
  ClientFixture f(options);
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  auto client = f.Join();
  f.Pull(*client, 0);
  f.cluster.Kill(1);
  const Future<PullResult> pull = client->Pull(0, f.Weights());
  f.cluster.Restart(1);
  REQUIRE(pull.Get().ok());
  CHECK(f.WeightsAre(0));
}

// ---- peers that are lost
// -------------------------------------------------------------------------------------------

TEST_CASE("a lost server ends every call with its name and address") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const std::string lost = "ps:1 at " + f.cluster.addresses()[1] + " was lost: ";
  // Parked on shard 0 for good.
  const Future<PullResult> parked = client->Pull(5, f.Weights());
  f.cluster.Kill(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto push = client->Push(work, base, f.Gradient()).Get();
  const auto waited = std::chrono::steady_clock::now() - begin;
  CHECK(push.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(Message(push.status()), StartsWith(lost));
  CHECK(waited < std::chrono::seconds(5));
  CHECK_THAT(Message(parked.Get().status()), StartsWith(lost));
  CHECK_THAT(Message(client->NextWork().status()), StartsWith(lost));
  CHECK_THAT(Message(client->Pull(0, f.Weights()).Get().status()), StartsWith(lost));
  CHECK_THAT(Message(client->WaitDraining(std::chrono::steady_clock::now()).status()), StartsWith(lost));
  // The client can still report to the coordinator.
  CHECK(client->Leave(push.status()).ok());
  REQUIRE(f.cluster.leaves().size() == 1);
  CHECK_FALSE(f.cluster.leaves()[0].done());
  CHECK_THAT(f.cluster.leaves()[0].reason(), StartsWith(lost));
}

TEST_CASE("a server that was waiting for others passes on for whom") {
  ClientFixture f(ClientFixture::Small());
  f.cluster.on_pull = [](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 0) return std::nullopt;
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                        "waited 20 s for the push of worker:3 at clock 0");
  };
  auto client = f.Join();
  const auto pull = client->Pull(1, f.Weights()).Get();
  CHECK(pull.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(Message(pull.status()) ==
        "ps:1 at " + f.cluster.addresses()[1] + ": waited 20 s for the push of worker:3 at clock 0");
  // Only that call fails.
  CHECK(f.NextWork(*client).clock == 0);
}

TEST_CASE("a server that does not answer in time is named") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_wait_seconds(0.1);
  auto client = f.Join();
  const auto pull = client->Pull(1, f.Weights()).Get();
  CHECK(pull.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(Message(pull.status()), Contains("did not answer the pull at clock 1 within 2.1 s") &&
                                         StartsWith("ps:") && Contains(" at 127.0.0.1:"));
}

// ---- outcomes
// ------------------------------------------------------------------------------------------------------

TEST_CASE("A push that is dropped as too stale does not end the job, whatever on_nonfinite says") {
  ClientFixture f(ClientFixture::Small());
  REQUIRE(f.config.consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_STOP);
  f.cluster.edit_push = [](uint32_t shard, v1::PushReply* reply) {
    if (shard != 1) return;
    reply->set_outcome(v1::REFUSED);
    reply->set_reason("too stale");
    reply->set_staleness(7);
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const auto result = client->Push(work, base, f.Gradient()).Get();
  REQUIRE(result.ok());
  CHECK_FALSE(result->applied);
  CHECK(result->staleness == 7);
  CHECK(result->reason == "ps:1: REFUSED: too stale");
}

TEST_CASE("a push that was disposed of is not applied, and says why") {
  const v1::Outcome outcome = GENERATE(v1::REFUSED, v1::DUPLICATE_BATCH, v1::STALE_VERSION, v1::STEP_PAST);
  const std::string expected = "ps:1: " + v1::Outcome_Name(outcome) + ": scripted";
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.cluster.edit_push = [outcome](uint32_t shard, v1::PushReply* reply) {
    if (shard != 1) return;
    reply->set_outcome(outcome);
    reply->set_reason("scripted");
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  SECTION("push") {
    const auto result = client->Push(work, base, f.Gradient()).Get();
    REQUIRE(result.ok());
    CHECK_FALSE(result->applied);
    CHECK(result->reason == expected);
  }
  SECTION("exchange: the weights follow anyway") {
    const auto result = client->PushPull(work, base, f.Gradient(), f.Weights()).Get();
    REQUIRE(result.ok());
    CHECK_FALSE(result->push.applied);
    CHECK(result->push.reason == expected);
    CHECK(result->pull.versions == std::vector<uint64_t>{1, 1});
    CHECK(f.WeightsAre(1));
    CHECK(f.cluster.pulls(1).size() == (outcome == v1::STEP_PAST ? 2 : 1));
  }
}

TEST_CASE("a pull of a step that is past says so, and the next work is of the open one") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  f.cluster.OpenStep(4);
  const PullResult result = f.Pull(*client, 0);
  CHECK(result.past);
  CHECK(result.versions == std::vector<uint64_t>{4, 4});
  CHECK(f.weights[0][0] == -1.0f);
  CHECK(f.NextWork(*client).clock == 4);
}

TEST_CASE("outcomes that end a call") {
  struct Case {
    v1::Outcome outcome;
    absl::StatusCode code;
    std::string message;
  };
  const auto c = GENERATE(values<Case>({
      {v1::FENCED, absl::StatusCode::kAborted, " says that this worker's lease has ended: scripted"},
      {v1::JOB_OVER, absl::StatusCode::kUnavailable, " says that the job is over: scripted"},
      {v1::OUTCOME_UNSPECIFIED, absl::StatusCode::kInternal,
       "sent the outcome 0, which this client does not know"},
      {static_cast<v1::Outcome>(99), absl::StatusCode::kInternal,
       "sent the outcome 99, which this client does not know"},
  }));
  const bool on_pull = GENERATE(false, true);
  ClientFixture f(ClientFixture::Small());
  f.cluster.edit_push = [c, on_pull](uint32_t shard, v1::PushReply* reply) {
    if (shard != 1 || on_pull) return;
    reply->set_outcome(c.outcome);
    reply->set_reason("scripted");
  };
  f.cluster.edit_pull = [c, on_pull](uint32_t shard, v1::PullReply* reply) {
    if (shard != 1 || !on_pull || reply->version().count() == 0) return;
    reply->set_outcome(c.outcome);
    reply->set_reason("scripted");
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const auto result = client->PushPull(work, base, f.Gradient(), f.Weights()).Get();
  INFO(c.message);
  CHECK(result.status().code() == c.code);
  CHECK_THAT(Message(result.status()), Contains(c.message));
  if (c.outcome == v1::FENCED) {
    CHECK_THAT(Message(result.status()), StartsWith("fenced: ps:1 at " + f.cluster.addresses()[1]));
    CHECK(client->NextWork().status().code() == absl::StatusCode::kAborted);
    CHECK(client->Leave().code() == absl::StatusCode::kAborted);
    CHECK(f.cluster.leaves().empty());
  } else {
    CHECK(client->Leave().ok());
  }
}

TEST_CASE("answers that break the protocol are errors") {
  ClientFixture f(ClientFixture::Small());
  std::string message;
  SECTION("sync: another version, a torn pull") {
    f.cluster.edit_pull = [](uint32_t shard, v1::PullReply* reply) {
      if (shard == 1) reply->mutable_version()->set_count(3);
    };
    message = " sent the weights of version 3 where version 0 was asked for";
  }
  SECTION("another size") {
    f.cluster.edit_pull = [](uint32_t shard, v1::PullReply* reply) {
      if (shard == 1) reply->set_elements(reply->elements() + 1);
    };
    message =
        "in answer to the pull at clock 0 it said that it has 99 elements; by this client's model it has 98";
  }
  auto client = f.Join();
  const auto pull = client->Pull(0, f.Weights()).Get();
  CHECK(pull.status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(Message(pull.status()), Contains(message) && StartsWith("ps:1 at "));
}

TEST_CASE("a stream that ends without its answers is one that was lost") {
  FakeCluster::Options options = ClientFixture::Large();
  options.end_streams = true;
  ClientFixture f(options);
  f.cluster.on_pull_middle = [](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 1) return grpc::Status::OK;
    return std::nullopt;
  };
  auto client = f.Join();
  const auto pull = client->Pull(0, f.Weights()).Get();
  CHECK(pull.status().code() == absl::StatusCode::kUnavailable);
  CHECK(Message(pull.status()) == "ps:1 at " + f.cluster.addresses()[1] + " was lost: it ended the stream");
  CHECK(f.cluster.streams(1) > 1);
}

// ---- snapshots, history
// --------------------------------------------------------------------------------------------

TEST_CASE("a snapshot is pulled under a pin, which is let go") {
  FakeCluster::Options options = ClientFixture::Small();
  options.start_clock = 6;
  ClientFixture f(options);
  f.options.reader = true;
  auto client = f.Join();
  const auto result = client->PullSnapshot(f.Weights()).Get();
  REQUIRE(result.ok());
  CHECK(result->versions == std::vector<uint64_t>{6, 6});
  CHECK(f.WeightsAre(6));
  CHECK(f.cluster.pulls(0).at(0).pin() == 1);
  CHECK(f.cluster.pulls(1).at(0).pin() == 1);
  CHECK(f.cluster.pins().empty());
}

TEST_CASE("a snapshot that fails lets its pin go, too") {
  ClientFixture f(ClientFixture::Small());
  std::string message;
  SECTION("an error") {
    f.cluster.on_pull = [](uint32_t, size_t) {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such pin");
    };
    message = "no such pin";
  }
  SECTION("a version other than the pinned one") {
    f.cluster.edit_pull = [](uint32_t shard, v1::PullReply* reply) {
      if (shard == 1) reply->mutable_version()->set_count(1);
    };
    message = "sent the weights of version 1 where version 0 was asked for";
  }
  auto client = f.Join();
  const auto result = client->PullSnapshot(f.Weights()).Get();
  CHECK_THAT(Message(result.status()), Contains(message));
  CHECK(f.cluster.pins().empty());
}

TEST_CASE("the history holds every answer once") {
  ClientFixture f(ClientFixture::Small());
  f.options.history_path = TemporaryFolder() + "/client.jsonl";
  f.cluster.on_push_reply = [](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1 && nth == 1) return kUnavailable;
    return std::nullopt;
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  REQUIRE(client->PushPull(work, base, f.Gradient(), f.Weights()).Get().ok());
  REQUIRE(client->Leave().ok());
  std::multiset<std::string> lines;
  std::ifstream file(f.options.history_path);
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line);
    CHECK(json["worker_incarnation"] == 7);
    json.erase("t_ns");
    lines.insert(json["op"].get<std::string>() + " " + std::to_string(json["shard"].get<int>()) + " " +
                 std::to_string(json["clock"].get<int>()) + " " + std::to_string(json["version"].get<int>()));
  }
  CHECK(lines == std::multiset<std::string>{"pull 0 0 0", "pull 1 0 0", "push 0 0 1", "push 1 0 1",
                                            "pull 0 1 1", "pull 1 1 1"});
}

}  // namespace
}  // namespace weir
