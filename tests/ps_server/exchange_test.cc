// The data plane as a client sees it: which message carries what, and when.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "client/shared_memory/shared_memory_link.h"
#include "common/codec/wire_codec.h"
#include "common/config/address.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Messages = std::vector<v1::ExchangeRequest>;

constexpr int64_t kElements = 150'000;  // three chunks
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

bool AllAre(const std::vector<float>& weights, float value) {
  return weights == std::vector<float>(kElements, value);
}

// Reads until the server has taken a chunk.
void AwaitCredit(RawStream& stream) {
  std::optional<v1::ExchangeReply> reply;
  do {
    reply = stream.Read();
    REQUIRE(reply.has_value());
    INFO(reply->error().message());
    REQUIRE_FALSE(reply->has_error());
  } while (reply->credit() == 0);
}

// Another worker pushes one gradient of ones as soon as it can.
ExchangeResult PushOf(ServerFixture& f, uint32_t worker, uint64_t batch) {
  RawStream stream(*f.shards[0]);
  Messages messages = f.Push();
  v1::PushRequest& header = *messages[0].mutable_push();
  header.mutable_caller()->set_worker(worker);
  header.mutable_caller()->set_incarnation(f.members[worker].incarnation());
  header.set_batch_plus_one(batch + 1);
  return stream.Run(messages);
}

TEST_CASE("A small push with its pull is one message each way") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_BOUNDED, kAsync);
  ServerFixture f(1000);
  f.config.mutable_consistency()->set_mode(mode);
  if (mode == v1::ConsistencyConfig::MODE_BOUNDED) f.config.mutable_consistency()->set_staleness(0);
  f.Start();
  f.Join();
  for (int step = 1; step <= 3; ++step) {
    const ExchangeResult result = f.stream().Run(f.PushAndPull());
    INFO(result.error);
    REQUIRE(result.outcome() == v1::OK);
    CHECK(result.replies == 1);
    CHECK(result.pull->version().count() == static_cast<uint64_t>(step));
    CHECK(result.weights == std::vector<float>(1000, static_cast<float>(step)));
    f.base = result.pull->version();
    ++f.clock;
  }
}

TEST_CASE("Weights come while the push is being applied") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.Start();
  f.Join();
  for (int step = 1; step <= 3; ++step) {
    const ExchangeResult result = f.stream().Run(f.PushAndPull());
    INFO(result.error);
    REQUIRE(result.outcome() == v1::OK);
    CHECK(result.eager_chunks == 2);
    CHECK(result.replies == 3);  // the last reply brings both answers
    CHECK(AllAre(result.weights, static_cast<float>(step)));
    f.base = result.pull->version();
    ++f.clock;
  }
}

TEST_CASE("A push that keeps its gradient until it is whole sends no weights before") {
  ServerFixture f(kElements);
  SECTION("sync") {}
  SECTION("staged") {
    f.config.mutable_consistency()->set_mode(kAsync);
    f.config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STAGED);
  }
  f.Start();
  f.Join();
  const ExchangeResult result = f.stream().Run(f.PushAndPull());
  INFO(result.error);
  REQUIRE(result.outcome() == v1::OK);
  CHECK(result.eager_chunks == 0);
  CHECK(AllAre(result.weights, 1));
}

TEST_CASE("A push that is overtaken is to be sent again, and then goes through") {
  ServerFixture f(kElements, 1, 2);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.Start();
  f.Join();
  Messages first = f.PushAndPull();
  REQUIRE(f.stream().Write(first[0]));
  AwaitCredit(f.stream());
  REQUIRE(PushOf(f, 1, 50).outcome() == v1::OK);
  // The server notices at the next chunk; the chunk after that comes too late and is ignored.
  REQUIRE(f.stream().Write(first[1]));
  REQUIRE(f.stream().Write(first[2]));
  ExchangeResult result = f.stream().Run(first, first.size());
  INFO(result.error);
  CHECK(result.outcome() == v1::SEND_AGAIN);
  CHECK_FALSE(result.pull.has_value());
  std::vector<float> weights;
  CHECK(f.Pull(&weights).count() == 1);
  CHECK(AllAre(weights, 1));

  Messages again = f.PushAndPull();
  REQUIRE(f.stream().Write(again[0]));
  AwaitCredit(f.stream());
  ++f.clock;
  REQUIRE(PushOf(f, 1, 51).outcome() == v1::OK);
  REQUIRE(f.stream().Write(again[1]));
  REQUIRE(f.stream().Write(again[2]));
  result = f.stream().Run(again, again.size());
  INFO(result.error);
  REQUIRE(result.outcome() == v1::OK);
  CHECK(result.pull->version().count() == 3);
  CHECK(AllAre(result.weights, 3));
}

TEST_CASE("A refused push was not applied, whatever weights were sent before it was known") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.Start();
  f.Join();
  Messages messages = f.PushAndPull();
  messages[2].mutable_gradient()->replace(0, 4, "\xff\xff\xff\x7f");
  const ExchangeResult result = f.stream().Run(messages);
  INFO(result.error);
  CHECK(result.outcome() == v1::REFUSED);
  CHECK(result.eager_chunks == 2);
  REQUIRE(result.pull.has_value());
  CHECK(result.pull->version().count() == 0);
  CHECK(AllAre(result.weights, 0));
}

TEST_CASE("A push whose answer was lost gets it again, with the weights") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.Start();
  f.Join();
  REQUIRE(f.stream().Run(f.PushAndPull()).outcome() == v1::OK);
  Messages messages = f.PushAndPull();
  SECTION("its chunks are not asked for") {
    const ExchangeResult result = f.stream().Run(messages);
    INFO(result.error);
    REQUIRE(result.outcome() == v1::OK);
    CHECK(result.push->version().count() == 1);
    CHECK(AllAre(result.weights, 1));
  }
  SECTION("as often as it asks") {
    for (int i = 0; i < 100; ++i) REQUIRE(f.stream().Run(f.Push()).outcome() == v1::OK);
    CHECK(f.Pull(nullptr).count() == 1);
  }
  SECTION("nor its weights sent, if none are wanted") {
    messages[0].mutable_pull()->set_header_only(true);
    const ExchangeResult result = f.stream().Run(messages);
    INFO(result.error);
    REQUIRE(result.outcome() == v1::OK);
    CHECK(result.pull->version().count() == 1);
    CHECK(result.replies == 1);
  }
}

TEST_CASE("bfloat16 both ways") {
  constexpr int64_t kLarge = 600'000;
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, kAsync);
  ServerFixture f(kLarge);
  f.config.mutable_consistency()->set_mode(mode);
  f.Start();
  f.Join();
  // 0.5 in chunks of up to 1 MiB, which hold more elements than a chunk of the answer.
  v1::ExchangeRequest head;
  head.set_id(f.NextId());
  *head.mutable_push() = f.Header();
  head.mutable_push()->set_dtype(v1::BF16);
  *head.mutable_pull() = f.PullHeader();
  head.mutable_pull()->set_clock(1);
  const v1::Dtype pull_dtype = GENERATE(v1::F32, v1::BF16);
  head.mutable_pull()->set_dtype(pull_dtype);
  Messages messages = {head};
  for (int64_t first = 0; first < kLarge; first += 524'288) {
    v1::ExchangeRequest& message = messages.emplace_back();
    message.set_id(head.id());
    message.set_first(first);
    const std::vector<uint16_t> halves(std::min(kLarge - first, int64_t{524'288}), 0x3f00);
    message.set_gradient(halves.data(), halves.size() * sizeof(uint16_t));
  }
  const ExchangeResult result = f.stream().Run(messages);
  INFO(result.error);
  REQUIRE(result.outcome() == v1::OK);
  const bool halves = result.weights == std::vector<float>(kLarge, 0.5f);
  CHECK(halves);
}

TEST_CASE("Many streams, several I/O threads, and threads that poll") {
  ServerFixture f(kElements, 1, 4);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.config.mutable_server()->set_io_threads(2);
  f.config.mutable_wire()->set_busy_poll_us(50);
  f.Start();
  f.Join();
  constexpr int kSteps = 5;
  std::vector<int> applied(f.workers);
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < f.workers; ++worker) {
    threads.emplace_back([&, worker] {
      RawStream stream(*f.shards[0]);
      v1::PushRequest header = f.Header();
      header.mutable_caller()->set_worker(worker);
      header.mutable_caller()->set_incarnation(f.members[worker].incarnation());
      const std::string ones = [] {
        const std::vector<float> values(kElements, 1);
        return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      }();
      uint64_t id = 0;
      for (int step = 0; step < kSteps;) {
        header.set_clock(step);
        header.set_batch_plus_one(1 + worker * kSteps + step);
        Messages messages;
        ++id;
        for (size_t at = 0; at < ones.size(); at += 1 << 18) {
          v1::ExchangeRequest& message = messages.emplace_back();
          message.set_id(id);
          if (at == 0) {
            *message.mutable_push() = header;
            *message.mutable_pull()->mutable_caller() = header.caller();
            message.mutable_pull()->set_clock(step + 1);
          }
          message.set_first(at / sizeof(float));
          message.set_gradient(ones.substr(at, 1 << 18));
        }
        const ExchangeResult result = stream.Run(messages);
        if (result.outcome() == v1::SEND_AGAIN) continue;
        if (result.outcome() != v1::OK) return;
        // Never torn.
        if (!AllAre(result.weights, static_cast<float>(result.pull->version().count()))) return;
        *header.mutable_base() = result.pull->version();
        ++applied[worker];
        ++step;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(applied == std::vector<int>(f.workers, kSteps));
  std::vector<float> weights;
  CHECK(f.Pull(&weights).count() == f.workers * kSteps);
  CHECK(AllAre(weights, static_cast<float>(f.workers * kSteps)));
}

TEST_CASE("A server that stops answers what is open and ends the streams itself") {
  ServerFixture f(kElements);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.Start();
  f.Join();
  SECTION("nothing is open") { f.TrainStep(); }
  SECTION("a push is arriving") {
    const Messages messages = f.Push();
    REQUIRE(f.stream().Write(messages[0]));
    AwaitCredit(f.stream());
    f.cluster->StopServer(0);
    const ExchangeResult result = f.stream().Run(messages, messages.size());
    CHECK(result.outcome() == v1::JOB_OVER);
    CHECK_THAT(result.push->reason(), Contains("the server stops"));
  }
  SECTION("a push waits for the one before it") {
    ++f.clock;
    const Messages messages = f.Push();
    REQUIRE(f.stream().Write(messages[0]));
    v1::ExchangeRequest pull;
    pull.set_id(f.NextId());
    *pull.mutable_pull() = f.PullHeader();
    pull.mutable_pull()->set_clock(0);
    // Answered only after the message before was handled.
    REQUIRE(f.stream().Run({pull}).outcome() == v1::OK);
    f.cluster->StopServer(0);
    CHECK(f.stream().Run(messages, messages.size()).outcome() == v1::JOB_OVER);
  }
  f.cluster->StopServer(0);
  const absl::Status end = f.stream().End();
  CHECK(end.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(end.message()), Contains("the job is over"));
}

// A stream whose client shares memory with the server, and a push's gradient in a segment of its own: ones in
// pieces, with values between them that must not be read.
struct SharedGradient {
  static constexpr int64_t kElements = 500'000;  // one chunk, more than a message may bring
  static constexpr uint64_t kBytes = kElements * sizeof(float);

  SharedGradient(ServerFixture& f, uint64_t piece_bytes, uint64_t stride)
      : piece_bytes(piece_bytes), stride(stride) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto address = ParseAddress(f.cluster->addresses()[0]);
    auto connected = SharedMemoryLink::Connect(*address, 1, 1 << 20, deadline);
    REQUIRE(connected.ok());
    link = *std::move(connected);
    const uint64_t pieces = (kBytes + piece_bytes - 1) / piece_bytes;
    const std::shared_ptr<SharedSegment> memory = *SharedSegment::Create(pieces * stride);
    float* const values = reinterpret_cast<float*>(memory->data());
    std::fill(values, values + pieces * stride / sizeof(float), std::numeric_limits<float>::quiet_NaN());
    for (uint64_t piece = 0; piece < pieces; ++piece) {
      float* const begin = values + piece * stride / sizeof(float);
      std::fill(begin, begin + piece_bytes / sizeof(float), 1.0f);
    }
    std::optional<uint32_t> number;
    while (!number.has_value()) number = link->NumberOf(memory);
    segment = *number;
    f.raw_stream = nullptr;
    v1::ExchangeRequest hello;
    hello.mutable_shared_memory()->set_token(link->token());
    REQUIRE(f.stream().Write(hello));
    const auto reply = f.stream().Read();
    REQUIRE(reply.has_value());
    REQUIRE(reply->shared_memory().granted());
  }
  // The whole push.
  v1::ExchangeRequest Push(ServerFixture& f) const {
    v1::ExchangeRequest message;
    message.set_id(f.NextId());
    *message.mutable_push() = f.Header();
    message.mutable_shared()->set_segment(segment);
    message.mutable_shared()->set_bytes(kBytes);
    if (piece_bytes < kBytes) {
      message.mutable_shared()->set_piece_bytes(piece_bytes);
      message.mutable_shared()->set_stride(stride);
    }
    return message;
  }

  const uint64_t piece_bytes, stride;
  std::unique_ptr<SharedMemoryLink> link;
  uint32_t segment = 0;
};

TEST_CASE("A gradient is read where the client has it, in one piece and in several") {
  ServerFixture f(SharedGradient::kElements);
  const bool sync = GENERATE(true, false);
  if (!sync) f.config.mutable_consistency()->set_mode(kAsync);
  f.config.mutable_server()->set_apply_threads(3);
  f.Start();
  f.Join();
  const auto [piece, stride] =
      GENERATE(std::pair<uint64_t, uint64_t>(SharedGradient::kBytes, SharedGradient::kBytes),
               std::pair<uint64_t, uint64_t>(65536, 3 * 65536), std::pair<uint64_t, uint64_t>(4096, 4100));
  const SharedGradient gradient(f, piece, stride);
  const ExchangeResult pushed = f.stream().Run({gradient.Push(f)});
  INFO(pushed.error);
  REQUIRE(pushed.outcome() == v1::OK);
  f.raw_stream = nullptr;
  ++f.clock;
  std::vector<float> weights;
  CHECK(f.Pull(&weights).count() == 1);
  CHECK(weights == std::vector<float>(SharedGradient::kElements, 1));
}

TEST_CASE("What is named in shared memory is held to the client's segments") {
  ServerFixture f(SharedGradient::kElements);
  f.config.mutable_consistency()->set_mode(kAsync);
  f.Start();
  f.Join();
  const SharedGradient gradient(f, 65536, 2 * 65536);
  const auto refused = [&](auto change, const char* why) {
    v1::ExchangeRequest push = gradient.Push(f);
    change(push.mutable_shared());
    const ExchangeResult result = f.stream().Run({push});
    CHECK(!result.error.ok());
    CHECK_THAT(std::string(result.error.message()), Contains(why));
  };
  refused([](v1::SharedRange* r) { r->set_bytes(kMaxSharedChunkBytes + 65536); }, "holds at most");
  refused([](v1::SharedRange* r) { r->set_offset(2 * 65536); }, "of a segment");
  refused([](v1::SharedRange* r) { r->set_stride(UINT64_MAX); }, "apart");
  refused([](v1::SharedRange* r) { r->set_stride(65535); }, "apart");
  refused([](v1::SharedRange* r) { r->set_piece_bytes(4); }, "pieces of 4 bytes");
  refused([](v1::SharedRange* r) { r->set_offset(UINT64_MAX - 1000); }, "of a segment");
  refused([](v1::SharedRange* r) { r->set_bytes(SharedGradient::kBytes - 1); }, "a chunk of");
  // The range unchanged, with the NaN between the pieces.
  refused([](v1::SharedRange* r) { r->set_segment(9); }, "segment 9");
  v1::ExchangeRequest push = gradient.Push(f);
  push.mutable_shared()->clear_piece_bytes();
  const ExchangeResult bad = f.stream().Run({push});
  CHECK(bad.outcome() == v1::REFUSED);
  CHECK_THAT(bad.push->reason(), Contains("w[16384]"));
}

TEST_CASE("Without shared memory, chunks travel in the messages") {
  ServerFixture f;
  f.Start();
  f.Join();
  f.raw_stream = nullptr;
  v1::ExchangeRequest hello;
  hello.mutable_shared_memory()->set_token("0123456789abcdef");
  REQUIRE(f.stream().Write(hello));
  const auto reply = f.stream().Read();
  REQUIRE(reply.has_value());
  CHECK(reply->has_shared_memory());
  CHECK_FALSE(reply->shared_memory().granted());
  f.TrainStep();
}

}  // namespace
}  // namespace weir
