// Views of the weights that the client builds from messages, and its count of the chunks that it reads in
// shared memory.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/exchange/shared_weights.h"
#include "tests/client/client_fixture.h"

namespace weir {
namespace {

WeightsView View(Client& client, uint64_t clock) {
  auto view = client.PullInPlace(clock).Take();
  INFO(view.status());
  REQUIRE(view.ok());
  return *std::move(view);
}

// Whether a view shows all weights of a version, with each tensor's length.
bool Shows(const WeightsView& view, const ModelSpec& model, uint64_t version) {
  if (view.tensors() != model.tensors.size()) return false;
  int64_t element = 0;
  for (size_t tensor = 0; tensor < view.tensors(); ++tensor) {
    for (absl::Span<const float> piece : view.pieces(tensor)) {
      for (float value : piece) {
        if (value != FakeCluster::Weight(version, element++)) return false;
      }
    }
    if (element != model.offset(tensor) + model.tensors[tensor].elements()) return false;
  }
  return true;
}

TEST_CASE("a view has a tensor's blocks in their order, whichever shards they come from") {
  ClientFixture f(ClientFixture::Large());
  auto client = f.Join();
  const WeightsView view = View(*client, 0);
  CHECK(view.pull().versions == std::vector<uint64_t>{0, 0});
  CHECK(Shows(view, f.model, 0));
  CHECK(view.pieces(0).size() == 26);  // 1,690,000 elements in blocks of 65,536
  CHECK(view.contiguous(0) == nullptr);
  CHECK(view.contiguous(1) == view.pieces(1)[0].data());
  CHECK_FALSE(view.in_place());
}

TEST_CASE("a view of one shard has each tensor in one piece") {
  FakeCluster::Options options = ClientFixture::Large();
  options.shards = 1;
  ClientFixture f(options);
  auto client = f.Join();
  const WeightsView view = View(*client, 0);
  CHECK(Shows(view, f.model, 0));
  CHECK(view.contiguous(1) == view.contiguous(0) + f.model.tensors[0].elements());
}

TEST_CASE("a push gives a view of what comes of it, and the buffers of the one before are used again") {
  FakeCluster::Options options = ClientFixture::Large();
  options.eager = GENERATE(false, true);
  options.sync = !options.eager;
  ClientFixture f(options);
  auto client = f.Join();
  if (options.eager) f.cluster.AddRange(1, 0, 5);
  WeightsView view = View(*client, 0);
  const float* const first = view.pieces(0)[0].data();
  const float* second = nullptr;
  for (uint64_t step = 1; step <= 4; ++step) {
    auto result = client->PushPullInPlace(f.NextWork(*client), view.pull(), f.Gradient()).Take();
    INFO(result.status());
    REQUIRE(result.ok());
    CHECK(result->push.applied);
    CHECK(result->weights.pull().versions == std::vector<uint64_t>{step, step});
    CHECK(Shows(result->weights, f.model, step));
    // The view was held until here.
    CHECK(Shows(view, f.model, step - 1));
    const float* const at = result->weights.pieces(0)[0].data();
    if (step == 1) second = at;
    CHECK(at == (step % 2 == 1 ? second : first));
    view = std::move(result->weights);
  }
}

TEST_CASE("what came before a pull was interrupted is no part of its view") {
  FakeCluster::Options options = ClientFixture::Large();
  options.sync = false;
  options.end_streams = GENERATE(false, true);
  ClientFixture f(options);
  f.cluster.on_pull_middle = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard != 1 || nth != 1) return std::nullopt;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "for a moment");
  };
  auto client = f.Join();
  const WeightsView view = View(*client, 0);
  CHECK(Shows(view, f.model, 0));
  CHECK(f.cluster.pulls(1).size() == 2);
}

TEST_CASE("a view outlives its client") {
  ClientFixture f(ClientFixture::Large());
  auto client = f.Join();
  const WeightsView view = View(*client, 0);
  const WeightsView other = View(*client, 0);
  client = nullptr;
  CHECK(Shows(view, f.model, 0));
  CHECK(Shows(other, f.model, 0));
}

TEST_CASE("a pull of a step that is past gives a view of nothing") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  f.cluster.OpenStep(3);
  const WeightsView view = View(*client, 0);
  CHECK(view.pull().past);
  CHECK(view.tensors() == 0);
}

TEST_CASE("a view's errors are those of a pull") {
  ClientFixture f(ClientFixture::Small());
  auto client = f.Join();
  f.cluster.on_pull = [](uint32_t, size_t) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not so");
  };
  const auto pull = client->PullInPlace(0).Take();
  CHECK(absl::IsInvalidArgument(pull.status()));
  const auto push = client->PushPullInPlace(f.NextWork(*client), PullResult(), f.Gradient()).Take();
  CHECK(absl::IsInvalidArgument(push.status()));
}

// ---- chunks in shared memory

using Chunk = SharedWeights::Chunk;
using Told = std::pair<uint64_t, uint32_t>;

Told Take(SharedWeights& weights) {
  const SharedWeights::Released released = weights.TakeReleased();
  return {released.first, released.count};
}

TEST_CASE("chunks are released in whatever order they are let go") {
  int news = 0;
  const auto weights = std::make_shared<SharedWeights>(nullptr, [&] { ++news; });
  std::vector<Chunk> chunks(10);
  for (Chunk& chunk : chunks) chunk = weights->Receive();
  CHECK(Take(*weights) == Told(0, 0));
  for (size_t i : {0, 1, 4, 5, 7}) chunks[i] = Chunk();
  CHECK(news == 1);
  // The oldest kept chunks, then the others, each run by the number of its first.
  CHECK(Take(*weights) == Told(0, 2));
  CHECK(Take(*weights) == Told(5, 2));
  CHECK(Take(*weights) == Told(8, 1));
  CHECK(Take(*weights) == Told(0, 0));
  for (size_t i : {2, 3}) chunks[i] = Chunk();
  CHECK(news == 2);
  // The chunks between have been released.
  CHECK(Take(*weights) == Told(0, 2));
  chunks[6].Done();
  CHECK(news == 2);
  for (size_t i : {8, 9}) chunks[i] = Chunk();
  CHECK(Take(*weights) == Told(0, 3));
  const Chunk last = weights->Receive();
  CHECK(Take(*weights) == Told(0, 0));
}

TEST_CASE("chunks may be let go when their stream is over") {
  int news = 0;
  auto weights = std::make_shared<SharedWeights>(nullptr, [&] { ++news; });
  std::optional<Chunk> chunk = weights->Receive();
  weights->End();
  weights = nullptr;
  chunk.reset();
  CHECK(news == 0);
}

}  // namespace
}  // namespace weir
