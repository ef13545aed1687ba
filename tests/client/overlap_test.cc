// Gradients that leave while the rest is computed, bad gradients that are found on the way, and weights that
// are used while others are still on their way: against scripted servers.
#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "common/protocol/handshake.h"
#include "tests/client/client_fixture.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Four layers. Each of two shards has four chunks: of a, b and c; of c; of c and d, on shard 1 d alone; of d.
// `a` is on shard 0 alone.
FakeCluster::Options Layers(bool sync) {
  FakeCluster::Options options;
  options.sync = sync;
  options.model.tensors.push_back({"a", {1000}, TensorKind::kParameter, {}});
  options.model.tensors.push_back({"b", {300, 1000}, TensorKind::kParameter, {}});
  options.model.tensors.push_back({"c", {800, 1000}, TensorKind::kParameter, {}});
  options.model.tensors.push_back({"d", {700, 1000}, TensorKind::kParameter, {}});
  return options;
}
constexpr uint64_t kChunk = 262144;

// An event that threads can wait for.
class Flag {
 public:
  void Set() {
    MutexLock lock(mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  bool set() const {
    MutexLock lock(mutex_);
    return set_;
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!set_) changed_.Wait(mutex_);
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};
struct SetAtEnd {
  Flag& flag;
  ~SetAtEnd() { flag.Set(); }
};

// A client that has pulled weights and has work.
struct Joined {
  explicit Joined(ClientFixture& f) : client(f.Join()) {
    f.cluster.AddRange(1, 0, 5);
    work = f.NextWork(*client);
    base = f.Pull(*client, work.clock);
  }
  std::unique_ptr<Client> client;
  Work work;
  PullResult base;
};

void CheckPushed(const ClientFixture& f) {
  REQUIRE(f.cluster.pushes().size() == 2);
  for (const FakeCluster::Push& push : f.cluster.pushes()) CHECK((push.gradient == f.GradientOf(push.shard)));
}

// ---- bad gradients

void SetOnNonfinite(ClientFixture& f, v1::ConsistencyConfig::OnNonfinite what) {
  f.config.mutable_consistency()->set_on_nonfinite(what);
}
std::string Diverged(const std::string& found) {
  return "training diverged: worker 0 (worker:0): " + found +
         " at clock 0, batch 0 (examples 0 to 9 in the job's order); look for NaN and Inf in the batch's "
         "inputs "
         "and loss, and if there are none try a lower optimizer.learning_rate, train.clip_norm or a warm-up";
}

// Every shard received the refusal, and none has a gradient.
void CheckRefused(const ClientFixture& f, size_t shards, const std::string& expected) {
  CHECK(f.cluster.pushes().size() == shards);
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    CHECK(push.header.refused() ==
          "worker 0 (worker:0): " + expected + " at clock 0, batch 0 (examples 0 to 9 in the job's order)");
    CHECK(push.header.batch_plus_one() > 0);
    CHECK(push.gradient.empty());
  }
}

TEST_CASE("a gradient that turns out bad while it is sent is refused by all shards, or ends the client") {
  ClientFixture f(Layers(GENERATE(true, false)));
  const bool with_pull = GENERATE(false, true);
  const bool reject = GENERATE(true, false);
  if (reject) SetOnNonfinite(f, v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  const bool rounded = GENERATE(false, true);
  if (rounded) f.config.mutable_wire()->set_push_dtype(v1::WireConfig::TYPE_BF16);
  Joined j(f);
  std::string expected;
  SECTION("in the first chunk") {
    f.gradient[0][999] = kNaN;
    expected = "the gradient of a[999] is NaN";
  }
  SECTION("in the last block, which is shard 1's") {
    f.gradient[3][699999] = -std::numeric_limits<float>::infinity();
    expected = "the gradient of d[699999] is -Inf";
  }
  SECTION("in two places: the first is named") {
    f.gradient[3][699999] = kNaN;
    f.gradient[2][600000] = kNaN;
    expected = "the gradient of c[600000] is NaN";
  }
  const std::vector<ConstTensor> gradient = rounded ? f.RoundedGradient() : f.Gradient();
  absl::StatusOr<PushResult> push;
  if (with_pull) {
    const auto both = j.client->PushPull(j.work, j.base, gradient, f.Weights()).Get();
    push = both.ok() ? absl::StatusOr<PushResult>(both->push) : both.status();
  } else {
    push = j.client->Push(j.work, j.base, gradient).Get();
  }
  // No shard can have applied any of it.
  CHECK(f.cluster.chunks(0).size() < 4);
  CHECK(f.cluster.chunks(1).size() < 4);
  if (!reject) {
    CHECK(push.status().code() == absl::StatusCode::kInternal);
    CHECK(Message(push.status()) == Diverged(expected));
    CHECK(f.cluster.pushes().empty());
    CHECK(Message(j.client->NextWork().status()) == Diverged(expected));
    CHECK(Message(j.client->Pull(0, f.Weights()).Get().status()) == Diverged(expected));
    CHECK(j.client->Leave(absl::CancelledError("some other reason")).ok());
    REQUIRE(f.cluster.leaves().size() == 1);
    CHECK_FALSE(f.cluster.leaves()[0].done());
    CHECK(f.cluster.leaves()[0].reason() == Diverged(expected));
    return;
  }
  INFO(push.status());
  REQUIRE(push.ok());
  CHECK_FALSE(push->applied);
  CHECK_THAT(push->reason, Contains("REFUSED") && Contains(expected));
  CheckRefused(f, 2, expected);
  const Work next = f.NextWork(*j.client);
  CHECK(next.clock == j.work.clock + 1);
  CHECK(next.batch == j.work.batch + 1);
}

TEST_CASE("a value that bfloat16 cannot hold is refused where the gradient travels so") {
  ClientFixture f(Layers(true));
  f.config.mutable_wire()->set_push_dtype(v1::WireConfig::TYPE_BF16);
  SetOnNonfinite(f, v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  Joined j(f);
  // The largest value that is rounded down, and the next one.
  uint32_t bits = 0x7f7f7fff;
  std::memcpy(&f.gradient[2][7], &bits, 4);
  f.gradient[1][3] = std::numeric_limits<float>::max();
  const auto push = j.client->Push(j.work, j.base, f.Gradient()).Get();
  REQUIRE(push.ok());
  CHECK_FALSE(push->applied);
  CHECK_THAT(push->reason,
             Contains("the gradient of b[3] is 3.4") && Contains("which bfloat16 rounds to infinity"));
  f.gradient[1][3] = 0;
  const Work next = f.NextWork(*j.client);
  const auto good = j.client->Push(next, f.Pull(*j.client, next.clock), f.Gradient()).Get();
  REQUIRE(good.ok());
  CHECK(good->applied);
}

TEST_CASE("a shard that refuses what the client found finite ends the client, or not") {
  ClientFixture f(Layers(false));
  const bool reject = GENERATE(true, false);
  if (reject) SetOnNonfinite(f, v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.cluster.edit_push = [](uint32_t shard, v1::PushReply* reply) {
    if (shard == 1) reply->set_outcome(v1::REFUSED);
    if (shard == 1) reply->set_reason("d[7] is not finite");
  };
  Joined j(f);
  const auto push = j.client->Push(j.work, j.base, f.Gradient()).Get();
  if (reject) {
    REQUIRE(push.ok());
    CHECK_FALSE(push->applied);
    return;
  }
  CHECK_THAT(Message(push.status()), Contains("training diverged: d[7] is not finite (ps:1); look for NaN"));
  CHECK(j.client->NextWork().status() == push.status());
}

TEST_CASE("a shard that does not take its part holds up no other") {
  ClientFixture f(Layers(false));
  Flag stalled, go_on;
  f.cluster.on_push = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1 && nth == 1) {
      stalled.Set();
      go_on.Wait();
    }
    return std::nullopt;
  };
  Joined j(f);
  SetAtEnd at_end{go_on};
  SECTION("which gets all of a good gradient") {
    const auto push = j.client->Push(j.work, j.base, f.Gradient());
    stalled.Wait();
    f.cluster.AwaitPushes(1);
    CHECK(f.cluster.pushes()[0].shard == 0);
    CHECK(f.cluster.chunks(1).empty());
    go_on.Set();
    REQUIRE(push.Get().ok());
    CheckPushed(f);
  }
  SECTION("which does not get all of one that is bad in the part that has not left") {
    f.gradient[3][699999] = kNaN;
    const auto push = j.client->Push(j.work, j.base, f.Gradient());
    CHECK(Message(push.Get().status()) == Diverged("the gradient of d[699999] is NaN"));
    CHECK(f.cluster.pushes().empty());
    CHECK(f.cluster.chunks(0).size() == 3);
  }
}

TEST_CASE("a model with less blocks than shards is pushed whole or not at all") {
  FakeCluster::Options options;
  options.sync = false;
  options.shards = 3;
  options.model.tensors.push_back({"a", {20}, TensorKind::kParameter, {}});
  ClientFixture f(options);
  SetOnNonfinite(f, v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  Joined j(f);
  GradientGate gate;
  const bool gated = GENERATE(false, true);
  const std::shared_ptr<GradientGate> shared(gated ? std::make_shared<GradientGate>() : nullptr);
  f.gradient[0][19] = kNaN;
  if (gated) shared->Ready(0);
  const auto push = j.client->Push(j.work, j.base, f.Gradient(), shared).Get();
  REQUIRE(push.ok());
  CHECK_FALSE(push->applied);
  // Shards without elements of the model get the refusal, too.
  CheckRefused(f, 3, "the gradient of a[19] is NaN");
  f.gradient[0][19] = 0;
  const Work next = f.NextWork(*j.client);
  REQUIRE(j.client->Push(next, f.Pull(*j.client, next.clock), f.Gradient()).Get().ok());
  CHECK(f.cluster.pushes().size() == 6);
}

// ---- gates

TEST_CASE("chunks leave as their tensors become ready, the first that wait first") {
  ClientFixture f(Layers(GENERATE(true, false)));
  Joined j(f);
  const std::vector<std::vector<float>> values = f.gradient;
  for (auto& tensor : f.gradient) std::fill(tensor.begin(), tensor.end(), kNaN);
  const auto gate = std::make_shared<GradientGate>();
  const auto ready = [&](size_t tensor) {
    std::copy(values[tensor].begin(), values[tensor].end(), f.gradient[tensor].begin());
    gate->Ready(tensor);
  };
  const bool before = GENERATE(true, false);
  if (before) ready(3);
  const auto push = j.client->PushPull(j.work, j.base, f.Gradient(), f.Weights(), gate);
  if (!before) ready(3);
  f.cluster.AwaitChunks(0, 1);
  f.cluster.AwaitChunks(1, 2);
  ready(1);
  ready(1);
  ready(2);
  f.cluster.AwaitChunks(0, 3);
  f.cluster.AwaitChunks(1, 3);
  CHECK_FALSE(push.ready());
  ready(0);
  const auto& result = push.Get();
  INFO(result.status());
  REQUIRE(result.ok());
  CHECK(result->push.applied);
  CHECK(f.WeightsAre(1));
  CheckPushed(f);
  const std::vector<uint64_t> order = {3 * kChunk, kChunk, 2 * kChunk, 0};
  CHECK(f.cluster.chunks(0) == order);
  // On this shard the third chunk has nothing of c, the first nothing of a, and the chunk that goes last
  // waits for a.
  CHECK(f.cluster.chunks(1) == std::vector<uint64_t>{2 * kChunk, 3 * kChunk, 0, kChunk});
}

TEST_CASE("a gate that fails ends its push, and nothing else") {
  ClientFixture f(Layers(GENERATE(true, false)));
  Joined j(f);
  const auto gate = std::make_shared<GradientGate>();
  std::string expected = "the device is gone";
  SECTION("before the push begins") {
    gate->Fail(absl::AbortedError("the device is gone"));
    CHECK(j.client->Push(j.work, j.base, f.Gradient(), gate).Get().status() ==
          absl::AbortedError("the device is gone"));
  }
  SECTION("in the middle") {
    gate->Ready(3);
    const auto push = j.client->PushPull(j.work, j.base, f.Gradient(), f.Weights(), gate);
    f.cluster.AwaitChunks(1, 1);
    gate->Fail(absl::AbortedError("the device is gone"));
    CHECK(push.Get().status() == absl::AbortedError("the device is gone"));
  }
  SECTION("by a tensor that the model does not have") {
    const auto push = j.client->Push(j.work, j.base, f.Gradient(), gate);
    gate->Ready(4);
    expected = "GradientGate::Ready(4): the model has 4 tensors";
    CHECK(Message(push.Get().status()) == expected);
  }
  CHECK(f.cluster.pushes().empty());
  CHECK(Message(j.client->NextWork().status()) == expected);
  // A gate is for one push.
  CHECK_THAT(Message(j.client->Push(j.work, j.base, f.Gradient(), gate).Get().status()),
             Contains("each push needs its own"));
  REQUIRE(j.client->Push(j.work, j.base, f.Gradient()).Get().ok());
  CheckPushed(f);
}

TEST_CASE("a gate that fails when all is ready is too late") {
  ClientFixture f(Layers(false));
  Joined j(f);
  const auto gate = std::make_shared<GradientGate>();
  for (size_t tensor = 0; tensor < 4; ++tensor) gate->Ready(tensor);
  gate->Fail(absl::AbortedError("the device is gone"));
  REQUIRE(j.client->Push(j.work, j.base, f.Gradient(), gate).Get().ok());
  CheckPushed(f);
}

TEST_CASE("a push whose tensors never become ready says so at its deadline") {
  ClientFixture f(Layers(true));
  f.config.mutable_cluster()->set_wait_seconds(0.1);
  Joined j(f);
  const auto gate = std::make_shared<GradientGate>();
  gate->Ready(1);
  const auto push = j.client->Push(j.work, j.base, f.Gradient(), gate).Get();
  CHECK(push.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(Message(push.status()), Contains("the push at clock 0") &&
                                         Contains("3 of 4 tensors of its gradient were never Ready()"));
}

TEST_CASE("a push that must be sent again begins with what is ready") {
  ClientFixture f(Layers(false));
  Flag first_over;
  f.cluster.on_push = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 0 && nth == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted");
    if (shard == 0) first_over.Set();
    return std::nullopt;
  };
  Joined j(f);
  const auto gate = std::make_shared<GradientGate>();
  gate->Ready(3);
  const auto push = j.client->Push(j.work, j.base, f.Gradient(), gate);
  first_over.Wait();
  for (size_t tensor : {2, 1, 0}) gate->Ready(tensor);
  REQUIRE(push.Get().ok());
  CheckPushed(f);
}

// ---- weights

// Records the reported tensors of a pull, and checks each when it is reported.
struct Arrivals {
  Arrivals(ClientFixture& f, uint64_t version) : f(f), version(version) {}

  OnWeights Take() {
    return [this](size_t tensor) {
      int64_t element = f.model.offset(tensor);
      for (float value : f.weights[tensor]) wrong += value != FakeCluster::Weight(version, element++);
      MutexLock lock(mutex);
      told.push_back(tensor);
      told_of_one.Set();
    };
  }
  std::vector<size_t> Told() {
    MutexLock lock(mutex);
    return told;
  }

  ClientFixture& f;
  const uint64_t version;
  Mutex mutex;
  std::vector<size_t> told;
  int64_t wrong = 0;
  Flag told_of_one;
};

const std::vector<size_t> kAll = {0, 1, 2, 3};

TEST_CASE("each tensor is told of once, whole, when all shards have said what it is of") {
  ClientFixture f(Layers(true));
  std::atomic<int> sent{0};
  Flag answers;
  f.cluster.on_pull = [&](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 1) answers.Wait();
    return std::nullopt;
  };
  Flag all_of_shard_0;
  f.cluster.edit_messages = [&](uint32_t shard, std::vector<v1::ExchangeReply>*) {
    if (shard == 0 && ++sent == 4) all_of_shard_0.Set();
  };
  auto client = f.Join();
  SetAtEnd at_end{answers};
  Arrivals arrivals(f, 0);
  const auto pull = client->Pull(0, f.Weights(), arrivals.Take());
  all_of_shard_0.Wait();
  // The tensor is on shard 0 alone, but shard 1 might not have the step.
  CHECK(arrivals.Told().empty());
  answers.Set();
  REQUIRE(pull.Get().ok());
  CHECK(arrivals.Told() == kAll);
  CHECK(arrivals.wrong == 0);
}

TEST_CASE("a step is open once the first of its weights are there, for work on them to begin") {
  ClientFixture f(Layers(true));
  Joined j(f);
  Flag begun;
  f.cluster.on_pull_middle = [&](uint32_t, size_t) -> std::optional<grpc::Status> {
    begun.Wait();
    return std::nullopt;
  };
  SetAtEnd at_end{begun};
  Arrivals arrivals(f, 1);
  const auto both = j.client->PushPull(j.work, j.base, f.Gradient(), f.Weights(), nullptr, arrivals.Take());
  CHECK(f.NextWork(*j.client).clock == 1);
  CHECK_FALSE(both.ready());
  begun.Set();
  CHECK(both.Get().ok());
  CHECK(arrivals.Told() == kAll);
}

TEST_CASE("of weights that come before their push is answered, tensors are told when it is") {
  FakeCluster::Options options = Layers(false);
  options.eager = GENERATE(true, false);
  ClientFixture f(options);
  SetOnNonfinite(f, v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  Joined j(f);
  SECTION("as they are") {}
  SECTION("or when they have come again, if the push was refused") {
    f.cluster.edit_push = [](uint32_t, v1::PushReply* reply) { reply->set_outcome(v1::REFUSED); };
  }
  Arrivals arrivals(f, 1);
  const auto gate = std::make_shared<GradientGate>();
  const auto both = j.client->PushPull(j.work, j.base, f.Gradient(), f.Weights(), gate, arrivals.Take());
  for (size_t tensor : {3, 1, 0}) gate->Ready(tensor);
  f.cluster.AwaitChunks(0, 1);
  CHECK(arrivals.Told().empty());
  gate->Ready(2);
  REQUIRE(both.Get().ok());
  std::vector<size_t> told = arrivals.Told();
  std::sort(told.begin(), told.end());
  CHECK(told == kAll);
  CHECK(arrivals.wrong == 0);
}

TEST_CASE("a pull of a step that is past tells of nothing") {
  ClientFixture f(Layers(true));
  f.cluster.OpenStep(2);
  auto client = f.Join();
  Arrivals arrivals(f, 0);
  const auto pull = client->Pull(1, f.Weights(), arrivals.Take()).Get();
  REQUIRE(pull.ok());
  CHECK(pull->past);
  CHECK(arrivals.Told().empty());
}

TEST_CASE("what was told of is not written again when a pull goes on elsewhere") {
  ClientFixture f(Layers(true));
  Arrivals arrivals(f, 0);
  f.cluster.on_pull_middle = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1 || nth > 1) return std::nullopt;
    arrivals.told_of_one.Wait();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted");
  };
  auto client = f.Join();
  SetAtEnd at_end{arrivals.told_of_one};
  const OnWeights take = arrivals.Take();
  const auto pull = client->Pull(0, f.Weights(), [&](size_t tensor) {
    take(tensor);
    // From now on the memory is the caller's.
    std::fill(f.weights[tensor].begin(), f.weights[tensor].end(), -7.0f);
  });
  REQUIRE(pull.Get().ok());
  CHECK(f.cluster.pulls(0).size() == 2);
  CHECK(arrivals.Told() == kAll);
  CHECK(arrivals.wrong == 0);
  for (const auto& tensor : f.weights) {
    CHECK(std::all_of(tensor.begin(), tensor.end(), [](float value) { return value == -7.0f; }));
  }
}

// Breaks the first pull from shard 0 once the client was told of a tensor; then the next version is there.
void CutFirstPullShort(ClientFixture& f, Arrivals& arrivals) {
  const auto broken = std::make_shared<std::atomic<bool>>(false);
  f.cluster.on_pull_middle = [&f, &arrivals, broken](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 1 || broken->exchange(true)) return std::nullopt;
    arrivals.told_of_one.Wait();
    f.cluster.edit_pull = [](uint32_t, v1::PullReply* reply) {
      reply->mutable_version()->set_count(reply->version().count() + 1);
    };
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted");
  };
}

TEST_CASE("a pull whose version is gone after its first tensors were told of must be made again") {
  ClientFixture f(Layers(false));
  Joined j(f);
  Arrivals arrivals(f, 1);
  CutFirstPullShort(f, arrivals);
  SetAtEnd at_end{arrivals.told_of_one};
  const auto both =
      j.client->PushPull(j.work, j.base, f.Gradient(), f.Weights(), nullptr, arrivals.Take()).Get();
  CHECK(both.status().code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(Message(both.status()),
             Contains("cut short after its first tensors") &&
                 Contains("(2 of incarnation 40, not 1 of incarnation 40) is there; pull again"));
  CHECK(arrivals.Told().front() == 0);
  CHECK(arrivals.Told().size() < 4);
  // The push is complete.
  const Work next = f.NextWork(*j.client);
  CHECK(next.clock == j.work.clock + 1);
  CHECK(j.client->Pull(next.clock, f.Weights()).Get().ok());
}

// The second push's values, by shard, where the first one rounds away a part of its gradient.
std::map<uint32_t, std::vector<float>> SecondPush(bool cut_short) {
  ClientFixture f(Layers(false));
  f.config.mutable_wire()->set_push_dtype(v1::WireConfig::TYPE_INT4);
  f.config.mutable_wire()->set_error_feedback(true);
  f.cluster.edit_join = [](v1::JoinReply* reply) { *reply->mutable_protocol() = OwnProtocol(); };
  Joined j(f);
  Arrivals arrivals(f, 1);
  if (cut_short) CutFirstPullShort(f, arrivals);
  SetAtEnd at_end{arrivals.told_of_one};
  const auto both =
      j.client->PushPull(j.work, j.base, f.Gradient(), f.Weights(), nullptr, arrivals.Take()).Get();
  CHECK((both.status().code() == absl::StatusCode::kDataLoss) == cut_short);
  const Work next = f.NextWork(*j.client);
  const PullResult base = f.Pull(*j.client, next.clock);
  CHECK(j.client->Push(next, base, f.Gradient()).Get().ok());
  std::map<uint32_t, std::vector<float>> second;
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    if (push.header.clock() == next.clock) second[push.shard] = push.gradient;
  }
  return second;
}

TEST_CASE("a push takes effect, and leaves its residual, even if the pull with it is cut short") {
  const auto whole = SecondPush(false);
  CHECK(whole.size() == 2);
  CHECK((SecondPush(true) == whole));
}

TEST_CASE("a pull whose version is gone before anything was told of goes on with the new one") {
  ClientFixture f(Layers(false));
  Flag answers;
  f.cluster.on_pull = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1) answers.Wait();
    if (shard == 0 && nth == 2) {
      f.cluster.edit_pull = [](uint32_t shard, v1::PullReply* reply) {
        if (shard == 0) reply->mutable_version()->set_count(5);
      };
      answers.Set();
    }
    return std::nullopt;
  };
  f.cluster.on_pull_middle = [&](uint32_t shard, size_t nth) -> std::optional<grpc::Status> {
    if (shard == 1 || nth > 1) return std::nullopt;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted");
  };
  auto client = f.Join();
  SetAtEnd at_end{answers};
  Arrivals arrivals(f, 0);
  const auto pull = client->Pull(0, f.Weights(), arrivals.Take()).Get();
  INFO(pull.status());
  REQUIRE(pull.ok());
  CHECK(pull->versions == std::vector<uint64_t>{5, 0});
  CHECK(arrivals.Told() == kAll);
  CHECK(arrivals.wrong == 0);
}

}  // namespace
}  // namespace weir
