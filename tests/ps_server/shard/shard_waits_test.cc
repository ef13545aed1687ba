// The cost of waiting calls if many workers have them: a push looks only at the calls that it lets continue,
// and calls that wait for one thing are described once.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "ps_server/consistency/policy.h"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

constexpr uint32_t kWorkers = 1024;

struct Asked {
  int on_push = 0, on_pull = 0, waiting_for = 0, clocks = 0;
};

// Counts the questions that the shard asks.
class CountingPolicy final : public ConsistencyPolicy {
 public:
  CountingPolicy(std::unique_ptr<ConsistencyPolicy> to, Asked* asked) : to_(std::move(to)), asked_(asked) {}

  void Restore(uint64_t version, absl::Span<const WorkerRecord> records) override {
    to_->Restore(version, records);
  }
  std::vector<WorkerRecord> Records() const override { return to_->Records(); }
  void Admit(uint32_t worker, uint64_t clock) override { to_->Admit(worker, clock); }
  void SetShare(uint32_t worker, uint32_t share) override { to_->SetShare(worker, share); }
  void Remove(uint32_t worker) override { to_->Remove(worker); }
  void Forget(uint32_t worker) override { to_->Forget(worker); }
  uint64_t JoinClock() const override { return to_->JoinClock(); }
  PushDecision OnPush(const PushKey& push) const override {
    ++asked_->on_push;
    return to_->OnPush(push);
  }
  void Complete(const PushKey& push) override { to_->Complete(push); }
  uint64_t Skip(uint32_t worker, uint64_t clock) override { return to_->Skip(worker, clock); }
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    ++asked_->on_pull;
    return to_->OnPull(worker, clock);
  }
  std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const override {
    ++asked_->waiting_for;
    return to_->WaitingFor(worker, clock);
  }
  std::vector<WorkerClockValue> Clocks() const override {
    ++asked_->clocks;
    return to_->Clocks();
  }
  std::optional<uint64_t> CompleteStep() const override { return to_->CompleteStep(); }
  void Commit() override { to_->Commit(); }

 private:
  const std::unique_ptr<ConsistencyPolicy> to_;
  Asked* const asked_;
};

struct Many : ShardFixture {
  explicit Many(v1::ConsistencyConfig::Mode mode) : ShardFixture(mode, 0) {
    install.set_workers(kWorkers);
    install.set_parts(kWorkers);
    install.set_total_batches(1000 * kWorkers);
    install.set_total_examples(8000 * kWorkers);
    make_policy = [this](const v1::JobConfig& job, const v1::Install& with) {
      return std::make_unique<CountingPolicy>(Shard::PolicyFromConfig(job, with), &asked);
    };
  }
  void StartAll() {
    Start();
    std::vector<TestMember> members;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) members.push_back({worker});
    Members(2, members);
  }
  PushReplyPtr PushOf(uint32_t worker, uint64_t step = 0) {
    TestPush push{worker, step, config.consistency().mode() == v1::ConsistencyConfig::MODE_SYNC ? worker : 0};
    push.epoch = 2;
    return Push(push);
  }

  Asked asked;
};

TEST_CASE(
    "bounded: a push looks at its worker's pulls; the slowest worker's at all of them, which then go on") {
  Many f(v1::ConsistencyConfig::MODE_BOUNDED);
  f.StartAll();
  std::vector<PullAnswerPtr> pulls;
  for (uint32_t worker = 0; worker + 1 < kWorkers; ++worker) {
    f.PushOf(worker);
    pulls.push_back(f.Pull(worker, 1, 2));
    CHECK_FALSE(pulls.back()->there());
  }
  f.asked = {};
  // A push looks at a pull of its own worker, which must still wait.
  pulls.push_back(f.Pull(7, 2, 2));
  f.PushOf(7, 1);
  CHECK(f.asked.on_pull < 8);
  CHECK_FALSE(pulls.back()->there());
  pulls.pop_back();
  f.PushOf(kWorkers - 1);
  for (const PullAnswerPtr& pull : pulls) CHECK(pull->there());
}

TEST_CASE("async: a push that waits for its worker's push before it goes on with that one") {
  Many f(v1::ConsistencyConfig::MODE_ASYNC);
  f.StartAll();
  std::vector<PushReplyPtr> late;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    TestPush push{worker, 1};
    push.epoch = 2;
    late.push_back(f.Push(push));
    REQUIRE_FALSE(late.back()->there());
  }
  f.asked = {};
  f.PushOf(5);
  CHECK(f.asked.on_push < 8);
  for (uint32_t worker = 0; worker < kWorkers; ++worker) CHECK(late[worker]->there() == (worker == 5));
}

TEST_CASE(
    "async: of the pushes that wait for one that is streaming in, the first goes on when it has ended") {
  Many f(v1::ConsistencyConfig::MODE_ASYNC);
  f.model.tensors[0].shape = {1 << 19};
  f.StartAll();
  TestPush first;
  first.epoch = 2;
  auto streaming = f.Begin(first);
  REQUIRE(streaming->streamed());
  std::vector<AnswerPtr<PushBegin>> held;
  for (uint32_t worker = 1; worker < 20; ++worker) {
    TestPush push{worker};
    push.epoch = 2;
    held.push_back(f.TryBegin(f.Header(push)));
    REQUIRE_FALSE(held.back()->there());
  }
  CHECK(f.Stats().waits(0).awaited(0) == "worker:0");
  f.asked = {};
  const std::vector<float> gradient(1 << 19, 1.0f);
  REQUIRE(TakeAll(*streaming, gradient).ok());
  f.Finish(std::move(streaming));
  CHECK(held[0]->there());
  for (size_t i = 1; i < held.size(); ++i) CHECK_FALSE(held[i]->there());
  CHECK(f.asked.on_push < 8);
  // If the stream stands still, no push waits for it.
  f.clock.Advance(absl::Milliseconds(100));
  f.shard->Tick();
  for (const auto& push : held) CHECK(push->there());
}

TEST_CASE("sync: that the parts of a step wait for the others is found out once, and described in brief") {
  Many f(v1::ConsistencyConfig::MODE_SYNC);
  f.StartAll();
  std::vector<PushReplyPtr> pushes;
  for (uint32_t worker = 0; worker < kWorkers / 2; ++worker) pushes.push_back(f.PushOf(worker));
  f.clock.Advance(absl::Seconds(3));
  f.asked = {};
  const v1::ShardStats stats = f.Stats();
  CHECK(f.asked.waiting_for <= 2);
  CHECK(f.asked.clocks <= 2);
  REQUIRE(stats.waits_size() == 1);
  const v1::Wait& wait = stats.waits(0);
  CHECK_THAT(wait.calls(), Catch::EndsWith("pushes, the first of part 0 of step 0"));
  CHECK_THAT(wait.reason(), Catch::StartsWith(absl::StrCat("worker:", kWorkers / 2, " (at clock 0), ")) &&
                                Catch::EndsWith(absl::StrCat(", ", kWorkers / 2 - 16, " more")));
  CHECK(wait.awaited_size() == 16);
  CHECK(wait.ByteSizeLong() < 2000);
}

}  // namespace
}  // namespace weir
