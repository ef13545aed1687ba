// A session with a real shard and no channel. Tests that need a channel are in tests/ps_server.
#include "ps_server/exchange/exchange_session.h"

#include <malloc.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"
#include "tests/common/task_queue.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

struct SessionFixture {
  explicit SessionFixture(uint64_t chunk_elements, bool admits = true)
      : shard(v1::ConsistencyConfig::MODE_ASYNC) {
    shard.Start();
    ExchangeSession::Options options;
    options.shard = shard.shard.get();
    options.executor = &tasks;
    options.id = ShardFixture::kSession;
    if (admits) options.admit = [](const v1::Caller&, bool) { return absl::OkStatus(); };
    options.chunk_elements = chunk_elements;
    session = std::make_shared<ExchangeSession>(options, [this] { ++news; });
  }
  ~SessionFixture() { session->End(); }

  absl::Status TryReceive(const v1::ExchangeRequest& request) {
    const auto bytes = std::make_shared<const std::string>(request.SerializeAsString());
    absl::Status status = session->Receive({{*bytes}, bytes});
    tasks.Run();
    return status;
  }
  void Receive(const v1::ExchangeRequest& request) { REQUIRE(TryReceive(request).ok()); }
  void Pull(uint64_t id) {
    v1::ExchangeRequest request;
    request.set_id(id);
    *request.mutable_pull()->mutable_caller() = shard.CallerOf(0);
    Receive(request);
  }
  // nullopt: no message is ready.
  std::optional<v1::ExchangeReply> Send() {
    OutgoingMessage message;
    if (!session->Send(&message)) return std::nullopt;
    std::string bytes = message.head;
    for (const auto& piece : message.payload) bytes.append(piece.bytes.data(), piece.bytes.size());
    session->Sent();
    v1::ExchangeReply reply;
    REQUIRE(reply.ParseFromString(bytes));
    return reply;
  }

  ShardFixture shard;
  TaskQueue tasks;
  int news = 0;
  std::shared_ptr<ExchangeSession> session;
};

TEST_CASE("The weights of a pull leave chunk by chunk, the first one with the answer") {
  SessionFixture f(16);
  CHECK_FALSE(f.Send().has_value());
  f.Pull(1);
  CHECK(f.news > 0);
  for (const uint64_t first : {0, 16, 32}) {
    const auto reply = f.Send();
    REQUIRE(reply.has_value());
    CHECK((reply->id() == 1 && reply->has_pull() == (first == 0) && reply->first() == first));
    CHECK(reply->weights().size() == (first == 32 ? 8 : 16) * sizeof(float));
  }
  CHECK_FALSE(f.Send().has_value());
  CHECK(f.session->idle());
}

TEST_CASE("The shard counts the bytes of the weights that leave, in their type, also as a push makes them") {
  const auto dtype = GENERATE(v1::F32, v1::BF16);
  const bool with_pull = GENERATE(true, false);
  SessionFixture f(16);
  const std::vector<float> gradient(40, 1.0f);
  v1::ExchangeRequest request;
  request.set_id(1);
  *request.mutable_push() = f.shard.Header({0});
  request.set_gradient(gradient.data(), gradient.size() * sizeof(float));
  if (with_pull) {
    *request.mutable_pull()->mutable_caller() = f.shard.CallerOf(0);
    request.mutable_pull()->set_clock(1);
    request.mutable_pull()->set_dtype(dtype);
  }
  f.Receive(request);
  f.tasks.Run();
  uint64_t bytes = 0;
  bool made = false;
  while (const auto reply = f.Send()) {
    if (reply->has_push()) CHECK(reply->push().outcome() == v1::OK);
    made = made || reply->has_pull();
    bytes += reply->weights().size();
  }
  CHECK(f.session->idle());
  CHECK(made == with_pull);
  CHECK(bytes == (with_pull ? 40 * (dtype == v1::F32 ? 4 : 2) : 0));
  CHECK(f.shard.shard->counters().bytes_pulled == bytes);
}

TEST_CASE("Weights that are revoked between two of their messages end their pull, once, and no other") {
  SessionFixture f(16);
  f.Pull(1);
  REQUIRE(f.Send().has_value());
  // The shard is reinstalled, which revokes all readers. The session does not know yet.
  REQUIRE(f.shard.Install() == "");
  f.shard.Members(1, {{0}, {1}});
  f.Pull(2);
  int ended = 0, answered = 0;
  while (const auto reply = f.Send()) {
    ended += reply->id() == 1;
    answered += reply->id() == 2 && reply->has_pull();
    CHECK(reply->has_error() == (reply->id() == 1));
  }
  CHECK((ended == 1 && answered == 1));
  CHECK_FALSE(f.session->DropRevoked());
  CHECK(f.session->idle());
}

TEST_CASE("A session that was told nothing of who may call refuses every exchange") {
  SessionFixture f(16, /*admits=*/false);
  f.Pull(1);
  const auto reply = f.Send();
  REQUIRE(reply.has_value());
  CHECK(reply->error().code() == static_cast<int>(absl::StatusCode::kPermissionDenied));
  CHECK_FALSE(f.Send().has_value());
  CHECK_FALSE(f.session->caller().has_value());
}

TEST_CASE("A session that has ended sends nothing, whatever was ready") {
  SessionFixture f(16);
  v1::ExchangeRequest hello;
  hello.mutable_shared_memory()->set_token("none");
  f.Receive(hello);
  f.Pull(1);
  f.Pull(2);
  f.session->End();
  CHECK_FALSE(f.Send().has_value());
}

// A pull that fails, with so many bytes in a field that nobody knows.
v1::ExchangeRequest PullWithUnknown(uint64_t id, size_t bytes) {
  v1::ExchangeRequest request;
  request.set_id(id);
  v1::PullRequest& pull = *request.mutable_pull();
  pull.set_pin(12345);
  pull.GetReflection()->MutableUnknownFields(&pull)->AddLengthDelimited(1000, std::string(bytes, 'x'));
  return request;
}

TEST_CASE("Fields that a server does not know are not kept with an exchange whose answer nobody reads") {
  constexpr uint64_t kPulls = 200;
  constexpr size_t kBytes = 60'000;
  SessionFixture f(16);
  const size_t before = mallinfo2().uordblks;
  for (uint64_t id = 1; id <= kPulls; ++id) f.Receive(PullWithUnknown(id, kBytes));
  CHECK(mallinfo2().uordblks < before + kPulls * kBytes / 4);
  const auto reply = f.Send();
  REQUIRE(reply.has_value());
  CHECK(reply->has_error());
}

TEST_CASE("A message that is large beside its gradient is refused") {
  SessionFixture f(16);
  const absl::Status status = f.TryReceive(PullWithUnknown(1, 70'000));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(status.message()), Catch::Contains("at most 65536 are allowed"));
  CHECK(LimitOf(status) == Limit::kRequestBytes);
}

}  // namespace
}  // namespace weir
