// The client's control path against scripted servers: joining, work, heartbeats, leaving.
#include <chrono>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "common/base/checksums.h"
#include "common/protocol/job_failure.h"
#include "tests/client/client_fixture.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::steady_clock;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

steady_clock::time_point Soon() { return steady_clock::now() + std::chrono::seconds(20); }

// Whether `done` becomes true soon; polls.
template <typename Done>
bool Eventually(const Done& done) {
  for (const auto end = Soon(); steady_clock::now() < end; std::this_thread::yield()) {
    if (done()) return true;
  }
  return false;
}

// ---- join
// ----------------------------------------------------------------------------------------------------------

TEST_CASE("Join says its protocol version, and refuses a ps:0 of another major one") {
  ClientFixture f(ClientFixture::Small());
  f.cluster.edit_join = [](v1::JoinReply* reply) { reply->mutable_protocol()->set_major(2); };
  f.options.job_config = f.config.SerializeAsString();
  const absl::Status status = Client::Join(f.options, f.model).status();
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Message(status) == "ps:0 speaks version 2.0 of the protocol, and " + f.options.task +
                               " version 1.11: upgrade " + f.options.task);
  REQUIRE(f.cluster.joins().size() == 1);
  CHECK(f.cluster.joins()[0].protocol().major() == 1);
  CHECK(f.cluster.joins()[0].protocol().minor() == 11);
}

TEST_CASE("A call that ends without a message is told by its server, its name and its code") {
  // So gRPC answers a call that a server does not have.
  const grpc::Status unknown(grpc::StatusCode::UNIMPLEMENTED, "");
  FakeCluster::Options options = ClientFixture::Small();
  options.end_streams = GENERATE(true, false);
  ClientFixture f(options);
  f.cluster.on_join = [=](size_t) { return std::make_optional(unknown); };
  f.options.job_config = f.config.SerializeAsString();
  const absl::Status join = Client::Join(f.options, f.model).status();
  CHECK(absl::IsUnimplemented(join));
  CHECK_THAT(Message(join), StartsWith("ps:0 (coordinator) at " + f.cluster.addresses()[0] +
                                       ": weir.v1.Coordinator/Join ended with UNIMPLEMENTED (12)"));
  f.cluster.on_join = [](size_t) { return std::optional<grpc::Status>(); };
  auto client = f.Join();
  f.cluster.on_pull = [=](uint32_t shard, size_t) {
    return shard == 1 ? std::make_optional(unknown) : std::nullopt;
  };
  const absl::Status pull = client->Pull(0, f.Weights()).Get().status();
  CHECK(absl::IsUnimplemented(pull));
  CHECK_THAT(Message(pull),
             StartsWith("ps:1 at " + f.cluster.addresses()[1] + ": ") && Contains("UNIMPLEMENTED"));
}

TEST_CASE("A client says its instance to the coordinator") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  REQUIRE(Eventually([&] { return !f.cluster.heartbeats().empty(); }));
  CHECK(f.cluster.heartbeats()[0].caller().instance() == f.cluster.joins()[0].instance());
}

TEST_CASE("A coordinator of a version without Stop: the error says which one is needed") {
  ClientFixture f(ClientFixture::Small());
  const auto client = f.Join();
  const absl::Status refused = client->Stop("enough");
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Message(refused) == "ps:0 (coordinator) at " + f.cluster.addresses()[0] +
                                " cannot stop a job: that needs version 1.10 of the protocol, and it speaks "
                                "an earlier one. Upgrade ps:0");
}

TEST_CASE("Join is repeated under one instance, and says who joins") {
  ClientFixture f(ClientFixture::Small());
  f.cluster.on_join = [](size_t nth) -> std::optional<grpc::Status> {
    if (nth <= 2) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet");
    return std::nullopt;
  };
  auto client = f.Join();
  const auto joins = f.cluster.joins();
  REQUIRE(joins.size() == 3);
  CHECK(joins[0].instance() != 0);
  CHECK(joins[0].instance() == joins[1].instance());
  CHECK(joins[0].instance() == joins[2].instance());
  CHECK(joins[0].role() == v1::WORKER);
  CHECK(joins[0].task() == "worker:0");
  CHECK(joins[0].train_examples() == 1000);
  v1::Model model;
  REQUIRE(model.ParseFromString(joins[0].model()));
  CHECK(model.tensors_size() == 2);
  CHECK(joins[0].job_config() == f.options.job_config);
  CHECK(joins[0].ps_addresses(1) == f.cluster.addresses()[1]);
  // Another client has another instance.
  client.reset();
  f.Join();
  CHECK(f.cluster.joins()[3].instance() != joins[0].instance());
}

TEST_CASE("what the coordinator has against a Join is passed on") {
  ClientFixture f(ClientFixture::Small());
  f.cluster.on_join = [](size_t) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "seed: the job has 1, worker:0 has 2");
  };
  f.options.job_config = f.config.SerializeAsString();
  const auto client = Client::Join(f.options, f.model);
  CHECK(client.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Message(client.status()) ==
        "ps:0 (coordinator) at " + f.cluster.addresses()[0] + ": seed: the job has 1, worker:0 has 2");
  CHECK(f.cluster.joins().size() == 1);
}

TEST_CASE("a coordinator that does not come is named when the start is over") {
  FakeCluster::Options options = ClientFixture::Small();
  options.unix_sockets = true;
  ClientFixture f(options);
  f.cluster.Kill(0);
  f.config.mutable_cluster()->set_start_seconds(0.3);
  f.options.job_config = f.config.SerializeAsString();
  const auto client = Client::Join(f.options, f.model);
  CHECK(client.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(Message(client.status()),
             StartsWith("ps:0 (coordinator) at " + f.cluster.addresses()[0] +
                        " could not be reached within cluster.start_seconds = 0.3 s: "));
}

TEST_CASE("a shard that does not come is named when the start is over, and the coordinator told") {
  ClientFixture f(ClientFixture::Small());
  f.cluster.Kill(1);
  f.config.mutable_cluster()->set_start_seconds(0.3);
  f.options.job_config = f.config.SerializeAsString();
  const auto client = Client::Join(f.options, f.model);
  CHECK(client.status().code() == absl::StatusCode::kUnavailable);
  CHECK(Message(client.status()) == "ps:1 at " + f.cluster.addresses()[1] + " could not be reached");
  REQUIRE(f.cluster.leaves().size() == 1);
  CHECK(f.cluster.leaves()[0].reason() == Message(client.status()));
}

TEST_CASE("a job that fails while a client looks for a shard says why, and the client looks no longer") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_start_seconds(30);
  f.options.job_config = f.config.SerializeAsString();
  f.cluster.Kill(1);
  f.cluster.SetState(v1::FAILED, "training diverged");
  const absl::Status status = Client::Join(f.options, f.model).status();
  CHECK(Message(status) == "training diverged");
  CHECK(f.cluster.leaves().size() == 1);
}

TEST_CASE("options that cannot be are refused") {
  ClientFixture f(ClientFixture::Small());
  ModelSpec model = f.model;
  std::string message;
  SECTION("no servers") {
    f.options.servers.clear();
    message = "no server is given";
  }
  SECTION("model") {
    model.tensors[1].name = model.tensors[0].name;
    message = "two tensors are named 'dense_0/weight'";
  }
  SECTION("config") {
    f.options.job_config = "no protobuf";
    message = "the job's config is not a serialized weir.v1.JobConfig";
  }
  SECTION("history") {
    f.options.history_path = "/nowhere/at/all";
    message = "cannot write the history to /nowhere/at/all: No such file or directory";
  }
  const auto client = Client::Join(f.options, model);
  CHECK(client.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(client.status()) == message);
  CHECK(f.cluster.joins().empty());
}

// ---- initial values

// A cluster whose model's initial values are uploaded.
FakeCluster::Options Uploaded() {
  FakeCluster::Options options = ClientFixture::Small();
  for (TensorSpec& tensor : options.model.tensors) tensor.init = Initializer::Uploaded();
  return options;
}

TEST_CASE("the worker that is named uploads its initial values within Join, as they are") {
  ClientFixture f(Uploaded());
  f.config.mutable_wire()->set_dtype(v1::WireConfig::TYPE_BF16);
  f.options.initial_values = f.Gradient();
  f.cluster.SetUploader(7);
  f.cluster.edit_join = [](v1::JoinReply* reply) { reply->mutable_membership()->set_uploader(7); };
  f.options.job_config = f.config.SerializeAsString();
  auto joining = std::async(std::launch::async, [&f] { return Client::Join(f.options, f.model); });
  f.cluster.AwaitPushes(2);
  CHECK(joining.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  f.cluster.SetUploader(0);
  const auto client = joining.get();
  REQUIRE(client.ok());
  const std::vector<FakeCluster::Push> uploads = f.cluster.pushes();
  REQUIRE(uploads.size() == 2);
  for (const FakeCluster::Push& upload : uploads) {
    CHECK(upload.header.initial_values());
    CHECK(upload.header.dtype() == v1::F32);
    CHECK(upload.gradient == f.GradientOf(upload.shard));
    CHECK_FALSE(upload.header.has_base());
    CHECK(upload.header.batch_plus_one() == 0);
  }
  // An upload has no clock, so the shards have answered no push yet.
  f.Pull(**client, 1);
  CHECK(f.cluster.pulls(0).back().answered_clock() == 0);
}

TEST_CASE("a worker that is not named uploads nothing") {
  ClientFixture f(Uploaded());
  f.options.initial_values = f.Gradient();
  f.cluster.edit_join = [](v1::JoinReply* reply) {
    reply->mutable_membership()->set_uploader(reply->incarnation() + 1);
  };
  f.Join();
  CHECK(f.cluster.pushes().empty());
}

TEST_CASE("Join waits for the initial values no longer than for the start, and says whom for") {
  ClientFixture f(Uploaded());
  f.options.initial_values = f.Gradient();
  f.config.mutable_cluster()->set_start_seconds(0.3);
  f.options.job_config = f.config.SerializeAsString();
  f.cluster.SetMembers({{0, 8}, {1, 9}});
  f.cluster.SetUploader(9);
  f.cluster.edit_join = [](v1::JoinReply* reply) { reply->mutable_membership()->set_uploader(9); };
  const absl::Status status = Client::Join(f.options, f.model).status();
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(Message(status),
             StartsWith("the initial values, which worker:1 uploads, are not on all servers"));
  REQUIRE(f.cluster.leaves().size() == 1);
  CHECK(f.cluster.leaves()[0].reason() == Message(status));
}

TEST_CASE("an upload that a server refuses ends Join with the server's reason") {
  ClientFixture f(Uploaded());
  f.options.initial_values = f.Gradient();
  f.cluster.SetUploader(7);
  f.cluster.edit_join = [](v1::JoinReply* reply) { reply->mutable_membership()->set_uploader(7); };
  f.cluster.on_push = [](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 0) return std::nullopt;
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "elements: 1");
  };
  f.options.job_config = f.config.SerializeAsString();
  const absl::Status status = Client::Join(f.options, f.model).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(Message(status), Contains("ps:1") && Contains("elements: 1"));
}

TEST_CASE("initial values that cannot be are refused before anything is sent") {
  ClientFixture f(GENERATE(true, false) ? Uploaded() : ClientFixture::Small());
  f.options.job_config = f.config.SerializeAsString();
  std::string message;
  if (!f.model.uploaded()) {
    f.options.initial_values = f.Gradient();
    message = "this worker gives initial values, but those of this model are not uploaded";
  } else {
    const int which = GENERATE(0, 1, 2, 3);
    if (which == 0) {
      message = "the initial values of this model are uploaded, but this worker gives none";
    } else if (which == 1) {
      f.gradient[1][3] = std::numeric_limits<float>::infinity();
      f.options.initial_values = f.Gradient();
      message = "the initial value dense_0/bias[3] is Inf";
    } else if (which == 2) {
      f.options.initial_values = f.Gradient();
      f.options.initial_values.pop_back();
      message = "tensor 'dense_0/bias' is missing";
    } else {
      f.gradient[1].pop_back();
      f.options.initial_values = f.Gradient();
      message = "tensor 'dense_0/bias' is given with 9 values; its shape [10] has 10";
    }
  }
  const absl::Status status = Client::Join(f.options, f.model).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(Message(status), StartsWith(message));
  CHECK(f.cluster.joins().empty());
}

// ---- work in sync
// --------------------------------------------------------------------------------------------------

TEST_CASE("a sync job ends after its last, short step") {
  FakeCluster::Options options = ClientFixture::Small();
  options.parts = 2;
  options.total_examples = 45;  // 5 batches: steps of 2, 2 and 1 parts
  ClientFixture f(options);
  auto client = f.Join();
  PullResult base = f.Pull(*client, 0);
  std::vector<uint64_t> clocks, batches;
  uint64_t examples = 0;
  while (true) {
    const auto work = client->NextWork();
    REQUIRE(work.ok());
    if (!work->has_value()) break;
    clocks.push_back((*work)->clock);
    batches.push_back((*work)->batch);
    examples += (*work)->examples;
    if ((*work)->last_of_clock) {
      const auto result = client->PushPull(**work, base, f.Gradient(), f.Weights()).Get();
      REQUIRE(result.ok());
      base = result->pull;
      CHECK(f.WeightsAre((*work)->clock + 1));
    } else {
      client->Push(**work, base, f.Gradient());
    }
  }
  CHECK(clocks == std::vector<uint64_t>{0, 0, 1, 1, 2});
  CHECK(batches == std::vector<uint64_t>{0, 1, 2, 3, 4});
  CHECK(examples == 45);
  CHECK(client->Leave().ok());
  CHECK(f.cluster.leaves().at(0).done());
  CHECK(f.cluster.leaves().at(0).reason().empty());
  // A second Leave() sends nothing.
  CHECK(client->Leave().ok());
  CHECK(f.cluster.leaves().size() == 1);
  CHECK(Message(client->NextWork().status()) == "this client has left the job");
  CHECK(Message(client->Pull(0, f.Weights()).Get().status()) == "this client has left the job");
}

TEST_CASE("a worker without a part waits for the next step without weights") {
  FakeCluster::Options options = ClientFixture::Small();
  options.worker = 1;
  options.parts = 1;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 3}, {1, 7}});
  auto client = f.Join();
  auto work = std::async(std::launch::async, [&] { return client->NextWork(); });
  f.cluster.AwaitPulls(0, 1);
  const v1::PullRequest probe = f.cluster.pulls(0).at(0);
  CHECK(probe.header_only());
  CHECK(probe.clock() == 1);
  f.cluster.OpenStep(1);
  // No part of step 1 either.
  f.cluster.AwaitPulls(0, 2);
  CHECK(f.cluster.pulls(0).at(1).clock() == 2);
  f.cluster.SetMembers({{1, 7}});
  const auto given = work.get();
  REQUIRE(given.ok());
  REQUIRE(given->has_value());
  CHECK((*given)->clock == 1);
  CHECK((*given)->part == 0);
  CHECK(f.cluster.pulls(1).empty());
}

TEST_CASE("a wait for work ends at its deadline, and takes no work then") {
  using Steady = std::chrono::steady_clock;
  FakeCluster::Options options = ClientFixture::Small();
  options.worker = 1;
  options.parts = 1;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 3}, {1, 7}});
  auto client = f.Join();
  CHECK_FALSE(client->NextWorkBy(Steady::now()).has_value());
  CHECK_FALSE(client->NextWorkBy(Steady::now() + std::chrono::milliseconds(20)).has_value());
  // One question to the servers for both.
  f.cluster.AwaitPulls(0, 1);
  CHECK(f.cluster.pulls(0).size() == 1);
  f.cluster.SetMembers({{1, 7}});
  const auto given = client->NextWorkBy(Steady::now() + std::chrono::seconds(30));
  REQUIRE(given.has_value());
  REQUIRE(given->ok());
  REQUIRE((*given)->has_value());
  CHECK((**given)->part == 0);
}

TEST_CASE("a probe that comes late learns which step is open") {
  FakeCluster::Options options = ClientFixture::Small();
  options.worker = 1;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 3}, {1, 7}});
  auto client = f.Join();
  f.cluster.OpenStep(4);
  f.cluster.SetMembers({{0, 3}});  // not a member for now
  auto work = std::async(std::launch::async, [&] { return client->NextWork(); });
  f.cluster.AwaitPulls(0, 2);
  CHECK(f.cluster.pulls(0).at(1).clock() == 5);
  f.cluster.OpenStep(10);  // the end
  const auto given = work.get();
  REQUIRE(given.ok());
  CHECK_FALSE(given->has_value());
}

TEST_CASE("the part of a worker that died is taken over while the exchange for the next step is out") {
  FakeCluster::Options options = ClientFixture::Small();
  options.parts = 2;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 7}, {1, 8}});
  auto client = f.Join();
  CHECK(client->leading());
  const PullResult base = f.Pull(*client, 0);
  const Work own = f.NextWork(*client);
  CHECK(own.part == 0);
  CHECK(own.last_of_clock);
  const Future<PushPullResult> exchange = client->PushPull(own, base, f.Gradient(), f.Weights());
  f.cluster.AwaitPushes(2);
  f.cluster.SetMembers({{0, 7}});
  const Work taken = f.NextWork(*client);
  CHECK(taken.clock == 0);
  CHECK(taken.part == 1);
  CHECK_FALSE(exchange.ready());
  CHECK(f.WeightsAre(0));
  const Future<PushResult> push = client->Push(taken, base, f.Gradient());
  REQUIRE(exchange.Get().ok());
  REQUIRE(push.Get().ok());
  CHECK(f.WeightsAre(1));
  // The push shows the epoch under which the worker took the part over.
  CHECK(f.cluster.pushes().back().header.caller().epoch() == 3);
  // The exchange already showed that the step is open: no separate pull was sent.
  CHECK(f.NextWork(*client).clock == 1);
  CHECK(f.cluster.pulls(0).size() == 1);
}

TEST_CASE("a wait for the next step ends with the servers' reason") {
  FakeCluster::Options options = ClientFixture::Small();
  options.worker = 1;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 3}, {1, 7}});
  f.cluster.on_pull = [](uint32_t, size_t) {
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "waited for worker:0");
  };
  auto client = f.Join();
  const auto work = client->NextWork();
  CHECK(work.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(Message(work.status()) == "ps:0 at " + f.cluster.addresses()[0] + ": waited for worker:0");
}

TEST_CASE(
    "a server that is not the one called: wrong addresses at first, a lost shard in a later membership") {
  ClientFixture f(Async(ClientFixture::Small()));
  f.cluster.on_pull = [](uint32_t, size_t) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "this is ps:1 of job \"b\"");
  };
  const auto Pulled = [&f] {
    auto client = f.Join();
    return client->Pull(0, f.Weights()).Get().status();
  };
  const absl::Status first = Pulled();
  CHECK(KindOf(first) == v1::FAILURE_CONFIG);
  CHECK_THAT(Message(first), Contains("has reached another server"));
  f.options.again = true;
  const absl::Status later = Pulled();
  CHECK(KindOf(later) == v1::FAILURE_LOST_PEER);
  CHECK_THAT(Message(later), Contains("another server is there now"));
}

// ---- work in ranges
// ------------------------------------------------------------------------------------------------

FakeCluster::Options Ranges() {
  FakeCluster::Options options = ClientFixture::Small();
  options.sync = false;
  options.total_examples = 45;
  options.start_clock = 3;
  return options;
}

TEST_CASE("ranges are worked off, reported and asked for until they are done") {
  ClientFixture f(Ranges());
  f.cluster.AddRange(10, 3, 2);
  f.cluster.AddRange(11, 0, 1);
  f.cluster.EndRanges();
  auto client = f.Join();
  std::vector<uint64_t> clocks, batches, examples;
  std::vector<Future<PushResult>> pushes;
  while (true) {
    const auto work = client->NextWork();
    REQUIRE(work.ok());
    if (!work->has_value()) break;
    clocks.push_back((*work)->clock);
    batches.push_back((*work)->batch);
    examples.push_back((*work)->examples);
    const PullResult base = f.Pull(*client, (*work)->clock);
    pushes.push_back(client->Push(**work, base, f.Gradient()));
  }
  CHECK(clocks == std::vector<uint64_t>{3, 4, 5});
  CHECK(batches == std::vector<uint64_t>{3, 4, 0});
  CHECK(examples == std::vector<uint64_t>{10, 5, 10});
  for (const auto& push : pushes) {
    // All were acknowledged before NextWork() returned the end.
    REQUIRE(push.ready());
    CHECK(push.Get().ok());
  }
  const auto asked = f.cluster.next_ranges();
  REQUIRE(asked.size() == 3);
  CHECK(asked[0].completed_ranges_size() == 0);
  REQUIRE(asked[1].completed_ranges_size() == 1);
  CHECK(asked[1].completed_ranges(0) == 10);
  REQUIRE(asked[2].completed_ranges_size() == 1);
  CHECK(asked[2].completed_ranges(0) == 11);
}

TEST_CASE("a range is not asked for before the pushes of the last one are acknowledged") {
  Mutex mutex;
  CondVar released;
  bool release = false;
  size_t asked_meanwhile = 0;
  ClientFixture f(Ranges());
  f.cluster.AddRange(0, 0, 1);
  f.cluster.AddRange(1, 1, 1);
  f.cluster.on_push_reply = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    MutexLock lock(mutex);
    while (shard == 1 && nth == 1 && !release) released.Wait(mutex);
    if (shard == 1 && nth == 1) asked_meanwhile = f.cluster.next_ranges().size();
    return std::nullopt;
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, work.clock);
  const Future<PushResult> push = client->Push(work, base, f.Gradient());
  f.cluster.AwaitPushes(2);
  f.cluster.SetNextRangeClock(9);
  auto next = std::async(std::launch::async, [&] { return client->NextWork(); });
  {
    MutexLock lock(mutex);
    release = true;
    released.NotifyAll();
  }
  const auto given = next.get();
  REQUIRE(given.ok());
  REQUIRE(given->has_value());
  CHECK((*given)->batch == 1);
  // The coordinator's clock is used.
  CHECK((*given)->clock == 9);
  CHECK(push.ready());
  MutexLock lock(mutex);
  CHECK(asked_meanwhile == 1);
}

TEST_CASE("a wait for a range ends when one comes free, or all are done") {
  const bool free = GENERATE(false, true);
  ClientFixture f(Ranges());
  auto client = f.Join();
  auto work = std::async(std::launch::async, [&] { return client->NextWork(); });
  CHECK(Eventually([&] { return f.cluster.next_ranges().size() == 1; }));
  if (free) {
    f.cluster.AddRange(5, 2, 1);
  } else {
    f.cluster.EndRanges();
  }
  const auto given = work.get();
  REQUIRE(given.ok());
  CHECK(given->has_value() == free);
}

TEST_CASE("without a push of its work, NextWork does not wait for ever") {
  ClientFixture f(Ranges());
  f.config.mutable_cluster()->set_wait_seconds(0.1);
  f.cluster.AddRange(0, 0, 1);
  auto client = f.Join();
  f.NextWork(*client);
  CHECK(Message(client->NextWork().status()) ==
        "NextWork() gave out the work at clock 3, which was never pushed");
}

TEST_CASE("a range that cannot be is the coordinator's error") {
  ClientFixture f(Ranges());
  f.cluster.AddRange(0, 4, 2);
  auto client = f.Join();
  CHECK(client->NextWork().status().code() == absl::StatusCode::kInternal);
}

// ---- heartbeats
// ----------------------------------------------------------------------------------------------------

TEST_CASE("the end of the examples wakes who waits for it") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  CHECK_FALSE(client->draining());
  const auto early = client->WaitDraining(steady_clock::now());
  REQUIRE(early.ok());
  CHECK_FALSE(*early);
  auto waiting = std::async(std::launch::async, [&] { return client->WaitDraining(Soon()); });
  f.cluster.SetState(v1::DRAINING);
  const auto drained = waiting.get();
  REQUIRE(drained.ok());
  CHECK(*drained);
  CHECK(client->draining());
  const auto work = client->NextWork();
  REQUIRE(work.ok());
  CHECK_FALSE(work->has_value());
}

TEST_CASE("who is fenced is told in every call, at once") {
  FakeCluster::Options options = ClientFixture::Small();
  options.parts = 2;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 7}, {1, 8}});
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const Future<PushPullResult> exchange = client->PushPull(work, base, f.Gradient(), f.Weights());
  auto next = std::async(std::launch::async, [&] { return client->NextWork(); });
  auto draining = std::async(std::launch::async, [&] { return client->WaitDraining(Soon()); });
  f.cluster.AwaitPushes(2);
  f.cluster.Fence();
  const std::string fenced =
      "fenced: the coordinator took worker:0 (incarnation 7) out of the job; its lease had ended";
  for (const absl::Status& status :
       {next.get().status(), draining.get().status(), exchange.Get().status(),
        client->Pull(0, f.Weights()).Get().status(), client->PullSnapshot(f.Weights()).Get().status(),
        client->Report(base, {}), client->Leave()}) {
    CHECK(status.code() == absl::StatusCode::kAborted);
    CHECK(Message(status) == fenced);
  }
  CHECK(f.cluster.leaves().empty());
}

TEST_CASE("who is fenced while a server cannot be reached yet joins again") {
  FakeCluster::Options options = ClientFixture::Small();
  options.unix_sockets = true;
  ClientFixture f(options);
  f.options.job_config = f.config.SerializeAsString();
  f.cluster.Kill(1);
  auto join = std::async(std::launch::async, [&] { return Client::Join(f.options, f.model); });
  f.cluster.AwaitHeartbeats(1, 0);
  f.cluster.Fence();
  CHECK(Eventually([&] { return f.cluster.joins().size() == 2; }));
  f.cluster.Restart(1);
  const auto client = join.get();
  INFO(client.status());
  REQUIRE(client.ok());
  CHECK(f.cluster.joins()[0].instance() != f.cluster.joins()[1].instance());
  f.Pull(**client, 0);
}

TEST_CASE("a job that failed says why in every call") {
  ClientFixture f(Ranges());
  auto client = f.Join();
  auto next = std::async(std::launch::async, [&] { return client->NextWork(); });
  f.cluster.SetState(v1::FAILED, "ps:1 at 10.0.0.2:2222 was lost");
  const auto work = next.get();
  CHECK(work.status().code() == absl::StatusCode::kUnavailable);
  CHECK(Message(work.status()) == "ps:1 at 10.0.0.2:2222 was lost");
  CHECK(Message(client->Pull(0, f.Weights()).Get().status()) == "ps:1 at 10.0.0.2:2222 was lost");
}

TEST_CASE("to leave a job that failed takes no time, even if the servers are gone") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_server_wait_seconds(600);
  auto client = f.Join();
  f.cluster.SetState(v1::FAILED, "scripted");
  CHECK_FALSE(client->WaitDraining(Soon()).ok());
  f.cluster.Kill(0);
  const auto begin = steady_clock::now();
  CHECK_FALSE(client->Leave(absl::UnavailableError("ps:1 was lost")).ok());
  CHECK(steady_clock::now() - begin < std::chrono::seconds(60));
}

TEST_CASE("who leaves because of a failure does not wait for a coordinator that is away") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_server_wait_seconds(600);
  auto client = f.Join();
  f.cluster.Kill(0);
  const auto begin = steady_clock::now();
  CHECK_FALSE(client->Leave(absl::UnavailableError("ps:0 was lost, said a pull")).ok());
  CHECK(steady_clock::now() - begin < std::chrono::seconds(60));
}

TEST_CASE("a lost coordinator wakes every waiter with its name") {
  FakeCluster::Options options = ClientFixture::Small();
  options.parts = 2;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 7}, {1, 8}});
  auto client = f.Join();
  f.cluster.Kill(0);
  const auto draining = client->WaitDraining(Soon());
  CHECK(draining.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(Message(draining.status()),
             StartsWith("ps:0 (coordinator) at " + f.cluster.addresses()[0] + " was lost: "));
  CHECK(client->NextWork().status() == draining.status());
  CHECK(client->Leave() == draining.status());
}

TEST_CASE("heartbeats go on, and carry progress") {
  FakeCluster::Options options = ClientFixture::Small();
  options.lease_seconds = 0.1;
  ClientFixture f(options);
  auto client = f.Join();
  client->SetProgress({320, 10, 12.5});
  CHECK(Eventually([&] {
    const auto beats = f.cluster.heartbeats();
    return beats.size() >= 3 && beats.back().report().examples() == 320 &&
           beats.back().report().batches() == 10 && beats.back().report().loss_sum() == 12.5 &&
           beats.back().known_revision() > 0;
  }));
  CHECK(client->Leave(absl::CancelledError("enough")).ok());
  CHECK(f.cluster.leaves().at(0).report().examples() == 320);
  CHECK(f.cluster.leaves().at(0).reason() == "enough");
  CHECK_FALSE(f.cluster.leaves().at(0).done());
}

TEST_CASE("windows of losses travel with heartbeats until one is answered, or with Leave()") {
  FakeCluster::Options options = ClientFixture::Small();
  options.lease_seconds = 0.1;
  ClientFixture f(options);
  auto client = f.Join();
  client->SetProgress({40, 5, 80});
  const auto carried = [&] {
    std::vector<uint64_t> numbers;
    const auto add = [&](const v1::WorkerReport& report) {
      for (const v1::LossWindow& window : report.loss_windows()) numbers.push_back(window.number());
    };
    for (const v1::HeartbeatRequest& beat : f.cluster.heartbeats()) add(beat.report());
    for (const v1::LeaveRequest& leave : f.cluster.leaves()) add(leave.report());
    return numbers;
  };
  REQUIRE(Eventually([&] { return !carried().empty(); }));
  const size_t beats = f.cluster.heartbeats().size();
  CHECK(Eventually([&] { return f.cluster.heartbeats().size() > beats + 3; }));
  CHECK(carried() == std::vector<uint64_t>{1});
  client->SetProgress({440, 55, 480});
  client->Leave(absl::CancelledError("enough")).IgnoreError();
  // It may have been under way with a heartbeat, too.
  CHECK(carried().size() > 1);
  CHECK(carried().back() == 2);
}

TEST_CASE("the live worker of lowest rank leads") {
  FakeCluster::Options options = ClientFixture::Small();
  options.worker = 1;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 3}, {1, 7}});
  auto client = f.Join();
  CHECK_FALSE(client->leading());
  f.cluster.SetMembers({{1, 7}, {2, 9}});
  CHECK(Eventually([&] { return client->leading(); }));
  // The coordinator tells an epoch before all shards have confirmed it, and again with the members that have
  // joined under it.
  f.cluster.SetMembers({{0, 10}, {1, 7}, {2, 9}}, /*new_epoch=*/false);
  CHECK(Eventually([&] { return !client->leading(); }));
}

TEST_CASE("the leading worker leaves with the hash of the final weights, if nobody has evaluated them") {
  ClientFixture f(ClientFixture::Small());
  f.options.hashes_weights = true;
  f.cluster.SetMembers({{0, 7}, {1, 8}});
  const auto joined_at_the_end = [&] {
    auto client = f.Join();
    f.cluster.SetState(v1::DRAINING);
    REQUIRE(client->WaitDraining(Soon()).ok());
    return client;
  };
  SECTION("it leads") {
    CHECK(joined_at_the_end()->Leave().ok());
    REQUIRE(f.cluster.reports().size() == 1);
    const v1::Evaluation evaluation = f.cluster.reports()[0].evaluation();
    std::vector<float> weights;
    for (int64_t element = 0; element < f.model.elements(); ++element) {
      weights.push_back(FakeCluster::Weight(evaluation.version(), element));
    }
    CHECK(evaluation.weights_sha256() ==
          Sha256Hex({reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float)}));
    CHECK_FALSE(evaluation.final());
    CHECK(evaluation.examples() == 0);
  }
  SECTION("it has evaluated them itself") {
    auto client = joined_at_the_end();
    EvaluationResult result;
    result.final = true;
    REQUIRE(client->Report({}, result).ok());
    CHECK(client->Leave().ok());
    CHECK(f.cluster.reports().size() == 1);
  }
  SECTION("another one leads") {
    f.cluster.SetMembers({{0, 6}, {1, 8}});
    CHECK(joined_at_the_end()->Leave().ok());
    CHECK(f.cluster.reports().empty());
  }
  SECTION("its work is not done") {
    CHECK(f.Join()->Leave().ok());
    CHECK(f.cluster.reports().empty());
  }
  SECTION("it gives up") {
    CHECK(joined_at_the_end()->Leave(absl::CancelledError("enough")).ok());
    CHECK(f.cluster.reports().empty());
  }
}

TEST_CASE("an evaluation is reported under the newest version that it read") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  PullResult of;
  of.versions = {4, 6};
  EvaluationResult result;
  result.test_loss = 0.25;
  result.test_accuracy = 0.975;
  result.examples = 297;
  result.weights_sha256 = "00ff";
  result.final = true;
  REQUIRE(client->Report(of, result).ok());
  const v1::Evaluation evaluation = f.cluster.reports().at(0).evaluation();
  CHECK(evaluation.version() == 6);
  CHECK(evaluation.test_loss() == 0.25);
  CHECK(evaluation.test_accuracy() == 0.975);
  CHECK(evaluation.examples() == 297);
  CHECK(evaluation.weights_sha256() == "00ff");
  CHECK(evaluation.final());
}

// ---- the end
// -------------------------------------------------------------------------------------------------------

TEST_CASE("a client that is destroyed leaves, and ends what is outstanding") {
  FakeCluster::Options options = ClientFixture::Small();
  options.parts = 2;
  ClientFixture f(options);
  f.cluster.SetMembers({{0, 7}, {1, 8}});
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  const Future<PushPullResult> exchange = client->PushPull(work, base, f.Gradient(), f.Weights());
  const Future<PullResult> pull = client->Pull(9, f.Weights());
  f.cluster.AwaitPushes(2);
  client.reset();
  REQUIRE(exchange.ready());
  REQUIRE(pull.ready());
  CHECK(Message(exchange.Get().status()) == "this client has left the job");
  CHECK_FALSE(pull.Get().ok());
  REQUIRE(f.cluster.leaves().size() == 1);
  CHECK_FALSE(f.cluster.leaves()[0].done());
  CHECK(f.cluster.leaves()[0].reason() == "client destroyed");
  CHECK(f.cluster.leaves()[0].caller().incarnation() == 7);
}

TEST_CASE("a client whose servers are gone is destroyed without delay") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  const Future<PullResult> pull = client->Pull(9, f.Weights());
  f.cluster.Kill(0);
  f.cluster.Kill(1);
  const auto begin = steady_clock::now();
  client.reset();
  CHECK(steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(pull.ready());
}

}  // namespace
}  // namespace weir
