// Pushes that no proper client sends: each is refused with the right code, changes nothing, and the server
// goes on.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Chunks = std::vector<v1::PushRequest>;

constexpr int64_t kElements = 600'000;  // three chunks

struct Malformed {
  std::string name;
  std::function<void(Chunks&)> spoil;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
  // Part of the message.
  std::string says = "";
};

const std::vector<Malformed>& Cases() {
  static const auto* cases = new std::vector<Malformed>{
      {"fewer elements than the shard", [](Chunks& c) { c[0].set_elements(kElements - 1); },
       grpc::StatusCode::INVALID_ARGUMENT, "elements"},
      {"more elements than the shard", [](Chunks& c) { c[0].set_elements(uint64_t{1} << 62); },
       grpc::StatusCode::INVALID_ARGUMENT, "elements"},
      {"no elements", [](Chunks& c) { c[0].clear_elements(); }},
      {"another model", [](Chunks& c) { c[0].mutable_caller()->set_model_hash(7); },
       grpc::StatusCode::INVALID_ARGUMENT, "model_hash"},
      {"no examples", [](Chunks& c) { c[0].clear_examples(); }, grpc::StatusCode::INVALID_ARGUMENT,
       "examples"},
      {"a gap", [](Chunks& c) { c[1].set_first(c[1].first() + 1); }, grpc::StatusCode::INVALID_ARGUMENT,
       "gap"},
      {"an overlap", [](Chunks& c) { c[1].set_first(c[1].first() - 1); }},
      {"a chunk twice", [](Chunks& c) { c.insert(c.begin() + 1, c[0]); }},
      {"chunks in another order", [](Chunks& c) { std::swap(c[1], c[2]); }},
      {"a first chunk that is not at 0", [](Chunks& c) { c[0].set_first(1); }},
      {"a position beyond everything", [](Chunks& c) { c[1].set_first(~uint64_t{0}); }},
      {"half a value", [](Chunks& c) { c[1].mutable_gradient()->pop_back(); }},
      {"one value too many", [](Chunks& c) { c[2].mutable_gradient()->append("1234"); }},
      {"an empty chunk", [](Chunks& c) { c[1].clear_gradient(); }},
      {"no chunk", [](Chunks& c) { c.clear(); }},
      {"an end in the middle", [](Chunks& c) { c.resize(2); }, grpc::StatusCode::INVALID_ARGUMENT,
       "524288 of 600000"},
      {"a message above 4 MiB", [](Chunks& c) { c[0].mutable_gradient()->resize((4 << 20) + 1); },
       grpc::StatusCode::RESOURCE_EXHAUSTED},
      {"a part that the step does not have", [](Chunks& c) { c[0].set_part(1); }},
      {"another batch", [](Chunks& c) { c[0].set_batch_plus_one(99); }, grpc::StatusCode::INVALID_ARGUMENT,
       "batch"},
      {"more examples than the part has", [](Chunks& c) { c[0].set_examples(1u << 30); }},
      {"a clock far ahead", [](Chunks& c) { c[0].set_clock(1000); }},
  };
  return *cases;
}

grpc::Status Push(ServerFixture& f, const Chunks& chunks) {
  v1::PushReply reply;
  const auto context = f.Context();
  const auto stream = f.shards[0]->Push(context.get(), &reply);
  for (const v1::PushRequest& chunk : chunks) {
    if (!stream->Write(chunk)) break;
  }
  stream->WritesDone();
  return stream->Finish();
}

grpc::Status PushPull(ServerFixture& f, const Chunks& chunks) {
  const auto context = f.Context();
  const auto stream = f.shards[0]->PushPull(context.get());
  for (const v1::PushRequest& chunk : chunks) {
    if (!stream->Write(chunk)) break;
  }
  stream->WritesDone();
  v1::PushPullReply reply;
  while (stream->Read(&reply)) {
  }
  return stream->Finish();
}

TEST_CASE("Malformed pushes are refused, change nothing, and the server goes on") {
  const bool exchange = GENERATE(false, true);
  ServerFixture f(kElements);
  f.Start();
  f.Join();
  for (const Malformed& malformed : Cases()) {
    INFO(malformed.name << (exchange ? " (PushPull)" : " (Push)"));
    Chunks chunks = f.Chunks();
    malformed.spoil(chunks);
    const grpc::Status status = exchange ? PushPull(f, chunks) : Push(f, chunks);
    INFO(status.error_message());
    CHECK(status.error_code() == malformed.code);
    CHECK(status.error_message().find(malformed.says) != std::string::npos);
    f.TrainStep();
  }
}

TEST_CASE("A push whose connection breaks in the middle has no effect") {
  ServerFixture f(kElements);
  f.Start();
  f.Join();
  for (int i = 0; i < 5; ++i) {
    const Chunks chunks = f.Chunks();
    v1::PushReply reply;
    const auto context = f.Context();
    const auto stream = f.shards[0]->Push(context.get(), &reply);
    for (int chunk = 0; chunk < i % 3; ++chunk) CHECK(stream->Write(chunks[chunk]));
    context->TryCancel();
    CHECK(stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
    f.TrainStep();
  }
}

TEST_CASE("Strangers are told that they are fenced, and change nothing") {
  ServerFixture f;
  f.Start();
  f.Join();
  Chunks chunks = f.Chunks();
  SECTION("an unknown worker") { chunks[0].mutable_caller()->set_worker(17); }
  SECTION("an earlier life") { chunks[0].mutable_caller()->set_incarnation(0); }
  v1::PushReply reply;
  const auto context = f.Context();
  const auto stream = f.shards[0]->Push(context.get(), &reply);
  REQUIRE(stream->Write(chunks[0]));
  stream->WritesDone();
  REQUIRE(stream->Finish().ok());
  CHECK(reply.outcome() == v1::FENCED);
  CHECK(reply.reason() != "");
  f.TrainStep();
}

TEST_CASE("Before there is a model, pushes and pulls are asked to come again") {
  ServerFixture f;
  f.Start();
  CHECK(Push(f, f.Chunks()).error_code() == grpc::StatusCode::UNAVAILABLE);
  const auto context = f.Context();
  const auto stream = f.shards[0]->Pull(context.get(), v1::PullRequest());
  v1::PullReply reply;
  CHECK_FALSE(stream->Read(&reply));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  f.Join();
  f.TrainStep();
}

TEST_CASE("A NaN on the wire is refused by name, and the step is committed without it") {
  ServerFixture f(kElements);
  f.Start();
  f.Join();
  Chunks chunks = f.Chunks();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  chunks[1].mutable_gradient()->replace(12 * sizeof(float), sizeof(float),
                                        reinterpret_cast<const char*>(&nan), sizeof(float));
  v1::PushReply reply;
  const auto context = f.Context();
  const auto stream = f.shards[0]->Push(context.get(), &reply);
  for (const v1::PushRequest& chunk : chunks) REQUIRE(stream->Write(chunk));
  stream->WritesDone();
  REQUIRE(stream->Finish().ok());
  CHECK(reply.outcome() == v1::REFUSED);
  ++f.clock;
  std::vector<float> weights;
  f.base = f.Pull(&weights);
  CHECK(f.base.count() == 1);
  const bool untouched = weights == std::vector<float>(kElements, 0);
  CHECK(untouched);
}

}  // namespace
}  // namespace weir
