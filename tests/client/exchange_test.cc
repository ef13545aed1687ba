// The streams under the client's calls: how exchanges share a stream, what a shard may send when, and what
// happens to the other exchanges when one goes wrong.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "client/client.h"
#include "common/codec/floats.h"
#include "tests/client/client_fixture.h"
#include "tests/client/gate.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Messages = std::vector<v1::ExchangeReply>;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

float Rounded(float value) {
  char half[2];
  ToBfloat16(&value, half, 1);
  FromBfloat16(half, &value, 1);
  return value;
}

// ---- one stream
// --------------------------------------------------------------------------------------------------

TEST_CASE("all exchanges with a shard share one stream, under rising ids") {
  FakeCluster::Options options = ClientFixture::Large();
  options.parts = 3;
  ClientFixture f(options);
  auto client = f.Join();
  const PullResult base = f.Pull(*client, 0);
  // Parked until the pushes have made step 1.
  std::vector<std::vector<float>> values;
  std::vector<MutableTensor> tensors;
  for (const TensorSpec& tensor : f.model.tensors) values.emplace_back(tensor.elements());
  for (size_t i = 0; i < values.size(); ++i) {
    tensors.push_back({f.model.tensors[i].name, absl::MakeSpan(values[i])});
  }
  const Future<PullResult> parked = client->Pull(1, tensors);
  std::vector<Future<PushResult>> pushes;
  for (int part = 0; part < 3; ++part) {
    pushes.push_back(client->Push(f.NextWork(*client), base, f.Gradient()));
  }
  for (const auto& push : pushes) {
    REQUIRE(push.Get().ok());
    CHECK(push.Get()->applied);
  }
  REQUIRE(parked.Get().ok());
  CHECK(values[0][0] == FakeCluster::Weight(1, 0));
  uint64_t ids[2][3] = {};
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    CHECK(push.stream == 1);
    // The first chunk of a push goes with its header if no other push is being sent, else after it.
    CHECK((push.messages == 4 || push.messages == 5));
    CHECK((push.gradient == f.GradientOf(push.shard)));
    ids[push.shard][push.header.part()] = push.id;
  }
  for (uint32_t shard : {0, 1}) {
    CHECK(f.cluster.streams(shard) == 1);
    CHECK(std::vector<uint64_t>(ids[shard], ids[shard] + 3) == std::vector<uint64_t>{3, 4, 5});
  }
}

TEST_CASE("clients of one process share a connection to a small shard, and none to a large one") {
  const bool small = GENERATE(true, false);
  ClientFixture f(Async(small ? ClientFixture::Small() : ClientFixture::Large()));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(f.Join());
    f.Pull(*clients.back(), 0);
  }
  CHECK(f.cluster.streams(0) == 3);
  CHECK(f.cluster.stream_connections() == (small ? 2 : 6));
}

TEST_CASE("a push and the next pull ask for both in their first message") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  REQUIRE(client->PushPull(work, base, f.Gradient(), f.Weights()).Get().ok());
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    CHECK(push.messages == 1);
    REQUIRE(push.pull.has_value());
    CHECK(push.pull->clock() == 1);
    CHECK(push.pull->caller().SerializeAsString() == push.header.caller().SerializeAsString());
    CHECK(push.header.caller().incarnation() == 7);
    CHECK(push.header.elements() == f.GradientOf(push.shard).size());
  }
}

TEST_CASE("a stream that breaks is replaced, and what was on it sent again") {
  FakeCluster::Options options = Async(ClientFixture::Large());
  options.unix_sockets = true;
  ClientFixture f(options);
  f.config.mutable_cluster()->set_server_wait_seconds(20);
  Gate begun, gate;
  f.HoldFirstPush(0, &begun, &gate);
  auto client = f.Join();
  OpenAtEnd open_at_end{gate};
  f.cluster.AddRange(1, 0, 5);
  const PullResult base = f.Pull(*client, 0);
  const Future<PushPullResult> both = client->PushPull(f.NextWork(*client), base, f.Gradient(), f.Weights());
  begun.Wait();
  f.cluster.Kill(0);
  f.cluster.Restart(0);
  const auto& result = both.Get();
  INFO(result.status());
  REQUIRE(result.ok());
  CHECK(result->push.applied);
  CHECK(f.WeightsAre(1));
  size_t whole = 0;
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    if (push.shard != 0) continue;
    ++whole;
    CHECK(push.stream >= 2);
    CHECK((push.gradient == f.GradientOf(0)));
  }
  CHECK(whole == 1);
}

TEST_CASE("a push that is given up half sent takes its stream along, and nothing else") {
  ClientFixture f(ClientFixture::Large());
  Gate begun, gate;
  f.cluster.on_push = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (nth > 1) return std::nullopt;
    if (shard == 1) {
      begun.Wait();
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "scripted");
    }
    begun.Open();
    gate.Wait();
    return std::nullopt;
  };
  auto client = f.Join();
  OpenAtEnd open_at_end{gate};
  const PullResult base = f.Pull(*client, 0);
  const Work work = f.NextWork(*client);
  // Parked on both shards.
  const Future<PullResult> pull = client->Pull(1, f.Weights());
  const auto push = client->Push(work, base, f.Gradient()).Get();
  CHECK(Message(push.status()) == "ps:1 at " + f.cluster.addresses()[1] + ": scripted");
  f.cluster.AwaitPulls(0, 3);
  CHECK(f.cluster.streams(0) == 2);
  CHECK(f.cluster.streams(1) == 1);
  CHECK_FALSE(pull.ready());
  // The gradient may be sent again.
  REQUIRE(client->Push(work, base, f.Gradient()).Get().ok());
  REQUIRE(pull.Get().ok());
  CHECK(f.WeightsAre(1));
  CHECK(f.cluster.streams(0) == 2);
}

TEST_CASE("an answer that comes after its call has ended is ignored") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_wait_seconds(0.1);
  auto client = f.Join();
  const auto late = client->Pull(1, f.Weights()).Get();
  CHECK(late.status().code() == absl::StatusCode::kDeadlineExceeded);
  const std::vector<std::vector<float>> before = f.weights;
  f.cluster.OpenStep(1);
  std::vector<std::vector<float>> values = before;
  REQUIRE(client
              ->Pull(1, {{f.model.tensors[0].name, absl::MakeSpan(values[0])},
                         {f.model.tensors[1].name, absl::MakeSpan(values[1])}})
              .Get()
              .ok());
  CHECK(values[0][0] == FakeCluster::Weight(1, 0));
  CHECK((f.weights == before));
  CHECK(f.cluster.streams(0) == 1);
  CHECK(f.cluster.streams(1) == 1);
}

// ---- what a shard may send when
// ----------------------------------------------------------------------------------

TEST_CASE("weights may come before the answer to their push") {
  FakeCluster::Options options = Async(ClientFixture::Large());
  options.eager = true;
  ClientFixture f(options);
  size_t again = 0;
  SECTION("and are those of the version that it made") {}
  SECTION("but not if it was refused") {
    f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
    f.cluster.edit_push = [](uint32_t, v1::PushReply* reply) { reply->set_outcome(v1::REFUSED); };
    again = 8;
  }
  SECTION("but not if another version is read") {
    f.cluster.edit_push = [](uint32_t, v1::PushReply* reply) { reply->mutable_version()->set_count(9); };
    again = 8;
  }
  std::atomic<size_t> early{0}, after{0};
  std::atomic<bool> on{false};
  f.cluster.edit_messages = [&](uint32_t, Messages* messages) {
    if (!on || messages->front().weights().empty()) return;
    v1::ExchangeReply& reply = messages->front();
    ++(reply.credit() > 0 || reply.first() >= 786432 ? early : after);
    // Wrong values, which the client has to forget.
    if (again > 0 && reply.credit() > 0)
      std::fill(reply.mutable_weights()->begin(), reply.mutable_weights()->end(), 1);
  };
  auto client = f.Join();
  f.cluster.AddRange(1, 0, 5);
  const PullResult base = f.Pull(*client, 0);
  on = true;
  const auto result = client->PushPull(f.NextWork(*client), base, f.Gradient(), f.Weights()).Get();
  INFO(result.status());
  REQUIRE(result.ok());
  CHECK(f.WeightsAre(1));
  CHECK(early + after == 8 + again);
}

TEST_CASE("weights may come in any order") {
  ClientFixture f(ClientFixture::Large());
  auto held = std::make_shared<std::vector<v1::ExchangeReply>>();
  f.cluster.edit_messages = [held](uint32_t shard, Messages* messages) {
    if (shard != 1) return;
    // The header goes at once; the chunks go when all are there, the last first.
    v1::ExchangeReply& reply = messages->front();
    held->push_back(reply);
    if (held->size() < 4) {
      reply.clear_weights();
      reply.clear_first();
      return;
    }
    messages->clear();
    for (; !held->empty(); held->pop_back()) {
      messages->push_back(held->back());
      messages->back().clear_pull();
    }
  };
  auto client = f.Join();
  f.Pull(*client, 0);
  CHECK(f.WeightsAre(0));
}

TEST_CASE("a push that was overtaken is sent again at once, in a new exchange") {
  FakeCluster::Options options = Async(ClientFixture::Large());
  options.eager = GENERATE(false, true);
  ClientFixture f(options);
  f.options.history_path = TemporaryFolder() + "/overtaken.jsonl";
  std::atomic<int> answers{0};
  f.cluster.edit_push = [&](uint32_t shard, v1::PushReply* reply) {
    if (shard == 1 && ++answers <= 2) reply->set_outcome(v1::SEND_AGAIN);
  };
  auto client = f.Join();
  f.cluster.AddRange(1, 0, 5);
  const PullResult base = f.Pull(*client, 0);
  const Work work = f.NextWork(*client);
  f.Push(*client, work, base, /*with_pull=*/GENERATE(false, true));
  const std::vector<FakeCluster::Push> tries = f.PushesOf(1);
  REQUIRE(tries.size() == 3);
  for (const FakeCluster::Push& push : tries) {
    CHECK(push.stream == 1);
    CHECK(push.header.SerializeAsString() == tries[0].header.SerializeAsString());
    CHECK((push.gradient == f.GradientOf(1)));
  }
  CHECK(tries[0].id < tries[1].id);
  CHECK(tries[1].id < tries[2].id);
}

TEST_CASE("what is no chunk, or comes unasked, is a broken shard's") {
  struct Case {
    const char* message;
    void (*edit)(Messages*);
  };
  const auto c = GENERATE(values<Case>({
      {"which does not fit", [](Messages* m) { m->front().set_first(m->front().first() + 1); }},
      {"which does not fit", [](Messages* m) { m->front().mutable_weights()->pop_back(); }},
      {"which does not fit",
       [](Messages* m) { m->front().mutable_weights()->resize(m->front().weights().size() - 4); }},
      {"which does not fit", [](Messages* m) { m->front().set_first(uint64_t{1} << 62); }},
      {"which does not fit",
       [](Messages* m) { m->front().set_weights(m->front().weights() + m->front().weights()); }},
      {"came before", [](Messages* m) { m->push_back(m->front()), m->back().clear_pull(); }},
      {"answered the pull twice", [](Messages* m) { m->push_back(m->front()); }},
      {"sent weights before it said what they are of", [](Messages* m) { m->front().clear_pull(); }},
      {"answered a push that was not sent",
       [](Messages* m) { m->front().mutable_push()->set_outcome(v1::OK); }},
      {"spoke of shared memory", [](Messages* m) { m->front().mutable_shared()->set_bytes(4); }},
      {"sent weights with the outcome JOB_OVER",
       [](Messages* m) { m->front().mutable_pull()->set_outcome(v1::JOB_OVER); }},
      {"sent an error of the unknown code 77: why",
       [](Messages* m) {
         m->front().mutable_error()->set_code(77);
         m->front().mutable_error()->set_message("why");
       }},
      {"something for exchange 99, which was never begun", [](Messages* m) { m->front().set_id(99); }},
  }));
  ClientFixture f(ClientFixture::Large());
  std::atomic<bool> done{false};
  f.cluster.edit_messages = [&](uint32_t shard, Messages* messages) {
    if (shard == 1 && !done.exchange(true)) c.edit(messages);
  };
  auto client = f.Join();
  const auto pull = client->Pull(0, f.Weights()).Get();
  INFO(c.message);
  CHECK(pull.status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(Message(pull.status()),
             StartsWith("ps:1 at " + f.cluster.addresses()[1] + ": ") && Contains(c.message));
  // The client goes on.
  f.Pull(*client, 0);
  CHECK(f.WeightsAre(0));
}

TEST_CASE("an answer to a pull before the one to its push is a broken shard's") {
  ClientFixture f(ClientFixture::Small());
  f.cluster.edit_messages = [](uint32_t shard, Messages* messages) {
    if (shard == 1 && messages->front().has_push()) {
      messages->front().clear_push();
      messages->front().mutable_pull()->set_outcome(v1::OK);
    }
  };
  auto client = f.Join();
  const PullResult base = f.Pull(*client, 0);
  const auto result = client->PushPull(f.NextWork(*client), base, f.Gradient(), f.Weights()).Get();
  CHECK(result.status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(Message(result.status()), Contains("answered the pull before the push"));
}

// ---- bfloat16
// ----------------------------------------------------------------------------------------------------

TEST_CASE("values travel as bfloat16 where the job says so") {
  const std::string which = GENERATE("both", "push", "pull", "pull by exception");
  const bool push = which == "both" || which == "push", pull = which != "push";
  FakeCluster::Options options = ClientFixture::Large();
  ClientFixture f(options);
  v1::WireConfig& wire = *f.config.mutable_wire();
  if (which == "both") wire.set_dtype(v1::WireConfig::TYPE_BF16);
  if (which == "push") wire.set_push_dtype(v1::WireConfig::TYPE_BF16);
  if (which == "pull") wire.set_pull_dtype(v1::WireConfig::TYPE_BF16);
  if (which == "pull by exception") {
    wire.set_dtype(v1::WireConfig::TYPE_BF16);
    wire.set_push_dtype(v1::WireConfig::TYPE_F32);
  }
  auto client = f.Join();
  const PullResult base = f.Pull(*client, 0);
  REQUIRE(client->PushPull(f.NextWork(*client), base, f.Gradient(), f.Weights()).Get().ok());
  for (const FakeCluster::Push& sent : f.cluster.pushes()) {
    CHECK(sent.header.dtype() == (push ? v1::BF16 : v1::F32));
    CHECK(sent.pull->dtype() == (pull ? v1::BF16 : v1::F32));
    CHECK(sent.messages == 4);
    CHECK(sent.largest_message <= (push ? 1u << 19 : 1u << 20) + 128);
    std::vector<float> expected = f.GradientOf(sent.shard);
    if (push) std::transform(expected.begin(), expected.end(), expected.begin(), Rounded);
    CHECK((sent.gradient == expected));
  }
  int64_t element = 0, wrong = 0;
  for (const auto& tensor : f.weights) {
    for (float value : tensor) {
      const float sent = FakeCluster::Weight(1, element++);
      wrong += value != (pull ? Rounded(sent) : sent);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a gradient that is bfloat16 already leaves as it is") {
  ClientFixture f(GENERATE(ClientFixture::Small(), ClientFixture::Large()));
  f.config.mutable_wire()->set_push_dtype(v1::WireConfig::TYPE_BF16);
  auto client = f.Join();
  const PullResult base = f.Pull(*client, 0);
  const std::vector<ConstTensor> gradient = f.RoundedGradient();
  REQUIRE(client->Push(f.NextWork(*client), base, gradient).Get().ok());
  REQUIRE(f.cluster.pushes().size() == f.options.servers.size());
  for (const FakeCluster::Push& sent : f.cluster.pushes()) {
    CHECK(sent.header.dtype() == v1::BF16);
    CHECK(sent.largest_message <= (1u << 19) + 128);
    std::vector<float> expected = f.GradientOf(sent.shard);
    std::transform(expected.begin(), expected.end(), expected.begin(), Rounded);
    CHECK((sent.gradient == expected));
  }
}

TEST_CASE("chunks are of the size that the job sets") {
  ClientFixture f(ClientFixture::Large());
  f.config.mutable_wire()->set_chunk_kib(256);
  auto client = f.Join();
  const PullResult base = f.Pull(*client, 0);
  REQUIRE(client->Push(f.NextWork(*client), base, f.Gradient()).Get().ok());
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    CHECK(push.messages == 13);
    CHECK(push.largest_message <= (256 << 10) + 128);
    CHECK((push.gradient == f.GradientOf(push.shard)));
  }
}

}  // namespace
}  // namespace weir
