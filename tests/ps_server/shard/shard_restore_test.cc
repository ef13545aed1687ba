// Shards that continue from a checkpoint: the same bits, the same answers, and the pushes that were lost.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/model/partition.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

// A job on some shards, of two workers in turn, with gradients that depend on (clock, worker, element) alone.
class Job {
 public:
  static constexpr int64_t kElements = 3000;

  Job(v1::ConsistencyConfig::Mode mode, v1::OptimizerConfig::Kind kind, bool streamed, uint32_t shards,
      std::shared_ptr<FaultyFileSystem> files)
      : sync_(mode == kSync), partition_(kElements, shards) {
    for (uint32_t k = 0; k < shards; ++k) {
      shards_.push_back(std::make_unique<ShardFixture>(mode, 2));
      ShardFixture& f = *shards_[k];
      f.files = files;
      f.model.tensors = {{"a/weight", {1900}, TensorKind::kParameter, Initializer::HeNormal(7)},
                         {"stats", {100}, TensorKind::kBuffer, Initializer::Zeros()},
                         {"b/weight", {1000}, TensorKind::kParameter, Initializer::HeNormal(3)}};
      f.config.mutable_optimizer()->set_type(kind);
      f.config.mutable_optimizer()->set_learning_rate(0.05f);
      f.config.mutable_optimizer()->mutable_schedule()->set_type(v1::ScheduleConfig::SCHEDULE_COSINE);
      if (!streamed) f.config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STAGED);
      f.install.set_shard(k);
      f.install.set_num_shards(shards);
      f.install.set_total_steps(20);
      f.Create();
    }
  }

  void Start(const v1::Restore* restore) {
    for (auto& shard : shards_) {
      REQUIRE(shard->Install(restore) == "");
      shard->Members(10, {{0, 0, step_}, {1, 0, step_}});
    }
  }

  void Train(uint64_t steps) {
    for (const uint64_t end = step_ + steps; step_ < end; ++step_) {
      for (uint32_t k = 0; k < shards_.size(); ++k) {
        ShardFixture& f = *shards_[k];
        for (uint32_t worker = 0; worker < 2; ++worker) {
          TestPush push{worker, step_, sync_ ? worker : 0};
          push.epoch = 10;
          f.PushGradient(f.Header(push), Gradient(k, worker));
        }
        if (sync_) f.Commit(step_, {0, 1});
      }
    }
  }

  v1::Restore Checkpoint() {
    std::vector<ShardFixture*> shards;
    for (auto& shard : shards_) {
      shard->TakeCheckpoint(step_, shards.empty());
      shards.push_back(shard.get());
    }
    return ShardFixture::Complete(step_, shards);
  }

  // The weights in the address space.
  std::vector<float> Weights() {
    std::vector<float> out(kElements);
    for (uint32_t k = 0; k < shards_.size(); ++k) {
      const std::vector<float> local = shards_[k]->Weights();
      ForEachBlock(k, [&](int64_t from, int64_t to, int64_t n) {
        std::copy_n(local.begin() + from, n, out.begin() + to);
      });
    }
    return out;
  }

  void GoTo(uint64_t step) { step_ = step; }

 private:
  template <typename Visit>
  void ForEachBlock(uint32_t k, const Visit& visit) const {
    for (int64_t b = 0; b < partition_.shard_blocks(k); ++b) {
      visit(b * partition_.block_size(), partition_.block_start(k, b), partition_.block_length(k, b));
    }
  }

  std::vector<float> Gradient(uint32_t k, uint32_t worker) const {
    RandomStream random(RandomKey(step_ * 2 + worker, "gradient"), 0);
    std::vector<float> all(kElements), local(partition_.shard_elements(k));
    for (float& value : all) value = UniformFloat(random.Next()) - 0.4f;
    ForEachBlock(k, [&](int64_t to, int64_t from, int64_t n) {
      std::copy_n(all.begin() + from, n, local.begin() + to);
    });
    return local;
  }

  const bool sync_;
  const Partition partition_;
  std::vector<std::unique_ptr<ShardFixture>> shards_;
  uint64_t step_ = 0;
};

TEST_CASE(
    "A job that goes on from a checkpoint, on any number of shards, has the bits of one without a break") {
  const auto mode = GENERATE(kSync, kAsync, kBounded);
  const auto kind = GENERATE(v1::OptimizerConfig::KIND_SGD, v1::OptimizerConfig::KIND_MOMENTUM,
                             v1::OptimizerConfig::KIND_ADAM);
  const bool streamed = GENERATE(true, false);
  auto files = std::make_shared<FaultyFileSystem>(1);
  Job plain(mode, kind, streamed, 2, files);
  plain.Start(nullptr);
  plain.Train(5);
  const v1::Restore restore = plain.Checkpoint();
  plain.Train(4);
  const std::vector<float> expected = plain.Weights();
  for (uint32_t shards : {2, 3, 1}) {
    CAPTURE(mode, kind, streamed, shards);
    Job again(mode, kind, streamed, shards, files);
    again.GoTo(5);
    again.Start(&restore);
    again.Train(4);
    CHECK((again.Weights() == expected));
  }
  // The same shards go back.
  plain.GoTo(5);
  plain.Start(&restore);
  plain.Train(4);
  CHECK((plain.Weights() == expected));
}

TEST_CASE("From weights alone a job starts anew") {
  ShardFixture f(kAsync);
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  f.Start();
  TestPush push{0, 0};
  push.batch = 4;
  f.Push(push);
  f.TakeCheckpoint(1);
  v1::Restore restore = ShardFixture::Complete(1, {&f});
  restore.set_weights_only(true);
  REQUIRE(f.Install(&restore) == "");
  f.Members(2, {{0}, {1}});
  CHECK(f.Weights() == All(1));
  CHECK(f.Newest()->count == 0);
  CHECK(f.Stats().pushes_applied() == 0);
  push.epoch = 2;
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(2));  // without momentum
}

// Restores `f` from its checkpoint, with the members that it had.
void Restore(ShardFixture& f, const v1::Restore& restore, uint64_t epoch) {
  REQUIRE(f.Install(&restore) == "");
  f.Members(epoch, {{0}, {1}});
}

TEST_CASE("A restored shard knows what it had answered and applied") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush push{0, 0};
  push.batch = 4;
  const auto first = f.Push(push);
  f.TakeCheckpoint(1);
  Restore(f, ShardFixture::Complete(1, {&f}), 2);
  CHECK(f.Stats().version().count() == 1);
  CHECK(f.Stats().pushes_applied() == 1);
  CHECK(f.Stats().version_staleness().counts(0) == 1);
  // The same clock gets the recorded answer. The same batch from a different worker is not applied again.
  CHECK(f.Push(push)->reply().SerializeAsString() == first->reply().SerializeAsString());
  TestPush other{1, 0};
  other.batch = 4;
  CHECK(f.Push(other)->reply().outcome() == v1::DUPLICATE_BATCH);
  CHECK(f.Weights() == All(1));
  // The worker continues at the next clock.
  TestPush next{0, 1};
  CHECK(f.Push(next)->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(2));
}

TEST_CASE("sync: a restored shard opens the step of its version, and repeats what it said of those before") {
  ShardFixture f(kSync);
  f.Start();
  for (uint64_t step = 0; step < 3; ++step) {
    f.Push({0, step, 0});
    f.Push({1, step, 1});
    f.Commit(step, {1});
  }
  f.TakeCheckpoint(3);
  Restore(f, ShardFixture::Complete(3, {&f}), 2);
  CHECK(f.Push({0, 2, 0})->reply().outcome() == v1::REFUSED);
  CHECK(f.Push({0, 2, 1})->reply().outcome() == v1::OK);
  CHECK(f.Pull(0, 3)->reply().header.version().count() == 3);
  f.Push({0, 3, 0});
  f.Push({1, 3, 1});
  CHECK(f.Reports(v1::ShardReport::kStaged).size() == 4);
  f.Commit(3, {0, 1});
  CHECK(f.Weights() == All(4));
}

TEST_CASE("Members of another incarnation, or that are gone, are none after a restore") {
  ShardFixture f(kBounded, 0);
  f.Start();
  f.Push({0, 0});
  f.Push({0, 1});
  f.Push({1, 0});
  f.TakeCheckpoint(1);
  const v1::Restore restore = ShardFixture::Complete(1, {&f});
  f.Reports(v1::ShardReport::kMembership);
  REQUIRE(f.Install(&restore) == "");
  CHECK(f.Pull(0, 2)->status().code() == absl::StatusCode::kUnavailable);  // not before a membership
  // Worker 1 is gone, worker 0 has a new incarnation.
  f.Members(2, {{0, 300, 0, true}});
  const auto installed = f.Reports(v1::ShardReport::kMembership);
  REQUIRE(installed.size() == 1);
  CHECK(installed[0].membership().floor() == 1);
  CHECK(f.Push({0, 2})->reply().outcome() == v1::FENCED);
  CHECK(f.Push({1, 1})->reply().outcome() == v1::FENCED);
  TestPush push{0, 1, 0, 300};
  CHECK(f.Push(push)->reply().outcome() == v1::OK);
}

TEST_CASE("What a worker had answered and a restored shard does not know is lost: nobody waits for it") {
  ShardFixture f(kBounded, 1);
  f.Start();
  f.Push({0, 0});
  f.Push({1, 0});
  f.TakeCheckpoint(1);
  const v1::Restore restore = ShardFixture::Complete(1, {&f});
  for (uint64_t clock = 1; clock < 4; ++clock) {
    f.Push({0, clock});
    f.Push({1, clock});
  }
  Restore(f, restore, 2);
  const uint64_t before = ShardFixture::kIncarnation;

  v1::PullRequest pull;
  *pull.mutable_caller() = f.CallerOf(0, 2);
  pull.set_clock(4);
  pull.set_answered_clock(5);
  CHECK(f.PullRequest(pull)->status().code() == absl::StatusCode::kInvalidArgument);
  pull.set_answered_clock(4);
  const auto waiting = f.PullRequest(pull);
  CHECK_FALSE(waiting->there());  // for worker 1
  CHECK(f.Stats().pushes_lost() == 3);
  // Worker 1 pushes a gradient of the lost version.
  TestPush push{1, 4};
  push.base_incarnation = before;
  push.base = 7;
  push.batch = 30;
  v1::PushRequest header = f.Header(push);
  header.set_answered_clock(5);
  CHECK(f.PushHeader(header, push)->status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(f.Stats().pushes_lost() == 3);
  header.set_answered_clock(4);
  const auto stale = f.PushHeader(header, push);
  CHECK(stale->reply().outcome() == v1::STALE_VERSION);
  CHECK(waiting->reply().header.version().count() == 2);
  CHECK(f.Stats().pushes_lost() == 7);
  CHECK(f.Weights() == All(2));
  // The push is refused, and its clock complete. It may be a copy of an acknowledged push, so it counts as
  // lost, too. A repeat does not count again.
  header.set_answered_clock(4);
  CHECK(f.PushHeader(header, push)->reply().outcome() == v1::STALE_VERSION);
  pull.set_clock(4);
  CHECK(f.PullRequest(pull)->there());
  CHECK(f.Stats().pushes_lost() == 7);
  // The worker continues, and the batch may come once more.
  push.base_incarnation.reset();
  push.base.reset();
  push.clock = 5;
  header = f.Header(push);
  header.set_answered_clock(5);
  CHECK(f.PushHeader(header, push)->reply().outcome() == v1::OK);

  // The lost pushes are part of the checkpoint.
  f.TakeCheckpoint(2);
  const v1::Restore second = ShardFixture::Complete(2, {&f});
  Restore(f, second, 3);
  CHECK(f.Stats().pushes_lost() == 7);
  f.TakeCheckpoint(3);
  f.Written();
}

TEST_CASE(
    "A shard knows how many batches it holds or refused; a gradient of an earlier incarnation is neither") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush push{0, 0};
  push.batch = 4;
  f.Push(push);
  push = {1, 0};
  push.batch = 4;
  CHECK(f.Push(push)->reply().outcome() == v1::DUPLICATE_BATCH);
  push = {1, 1};
  push.batch = 6;
  push.bad_element = 3;
  CHECK(f.Push(push)->reply().outcome() == v1::REFUSED);
  CHECK(f.Stats().batches_settled() == 2);
  f.TakeCheckpoint(1);
  Restore(f, ShardFixture::Complete(1, {&f}), 2);
  CHECK(f.Stats().batches_settled() == 2);
  push = {0, 1};
  push.epoch = 2;
  push.batch = 8;
  push.base = 1;
  push.base_incarnation = ShardFixture::kIncarnation;
  CHECK(f.Push(push)->reply().outcome() == v1::STALE_VERSION);
  CHECK(f.Stats().batches_settled() == 2);
  push = {0, 2};
  push.epoch = 2;
  push.batch = 6;
  CHECK(f.Push(push)->reply().outcome() == v1::DUPLICATE_BATCH);
  CHECK(f.Stats().batches_settled() == 2);
}

TEST_CASE("What a restored shard was not told of yet is lost still after it is restored again") {
  ShardFixture f(kBounded, 4);
  f.Start();
  f.Push({0, 0});
  f.Push({1, 0});
  f.TakeCheckpoint(1);
  const v1::Restore first = ShardFixture::Complete(1, {&f});
  for (uint64_t clock = 1; clock < 4; ++clock) f.Push({0, clock});
  // The members start at their start clocks, and have not called when the shard is saved and restored again.
  REQUIRE(f.Install(&first) == "");
  f.Members(2, {{0, 0, 2}, {1, 0, 2}, {2, 500, 3, false, true, 3}});
  f.Members(3, {{0, 0, 2}, {1, 0, 2}, {2, 500, 5, true, false, 3}});
  f.Members(4, {{0, 0, 2}, {1, 0, 2}, {2, 500, 5, false, false, 3}});
  CHECK(f.Stats().pushes_lost() == 0);
  f.TakeCheckpoint(2);
  const v1::Restore second = ShardFixture::Complete(2, {&f});
  REQUIRE(f.Install(&second) == "");
  f.Members(5, {{0, 0, 2}, {1, 0, 2}, {2, 500, 5, false, false, 3}});
  v1::PullRequest pull;
  *pull.mutable_caller() = f.CallerOf(0, 5);
  pull.set_clock(4);
  // This pull was sent earlier, and arrives late.
  pull.set_answered_clock(2);
  f.PullRequest(pull);
  CHECK(f.Stats().pushes_lost() == 1);
  pull.set_answered_clock(4);
  f.PullRequest(pull);
  CHECK(f.Stats().pushes_lost() == 3);
  TestPush push{2, 5, 0, 500};
  push.epoch = 5;
  v1::PushRequest header = f.Header(push);
  header.set_answered_clock(5);
  CHECK(f.PushHeader(header, push)->reply().outcome() == v1::OK);
  CHECK(f.Stats().pushes_lost() == 5);
  // Declared losses of workers that have left since are part of the checkpoint, too.
  f.Members(6, {{1, 0, 2}});
  f.TakeCheckpoint(3);
  const v1::Restore third = ShardFixture::Complete(3, {&f});
  REQUIRE(f.Install(&third) == "");
  CHECK(f.Stats().pushes_lost() == 5);
}

TEST_CASE(
    "A worker that joined after the checkpoint starts where the coordinator says, and declares the rest") {
  ShardFixture f(kAsync);
  f.Start();
  f.TakeCheckpoint(1);
  const v1::Restore restore = ShardFixture::Complete(1, {&f});
  REQUIRE(f.Install(&restore) == "");
  f.Members(2, {{0}, {1}, {2, 500, 50}});
  TestPush push{2, 53, 0, 500};
  v1::PushRequest header = f.Header(push);
  header.set_answered_clock(53);
  CHECK(f.PushHeader(header, push)->reply().outcome() == v1::OK);
  CHECK(f.Stats().pushes_lost() == 3);
}

}  // namespace
}  // namespace weir
