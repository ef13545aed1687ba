// Sync steps whose commit needs norms over all shards: these are measured before it.
#include <cmath>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/exact_sum.h"
#include "common/protocol/job_failure.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;

struct NormsFixture : CoordinatorFixture {
  explicit NormsFixture(uint32_t workers = 2) : CoordinatorFixture(kSync, workers, 2) {
    config.mutable_train()->set_clip(v1::TrainConfig::CLIP_MEAN);
    config.mutable_train()->set_clip_norm(1);
  }

  // The messages of one kind that the shard got.
  std::vector<v1::MeasureStep> Asked(size_t shard) const {
    std::vector<v1::MeasureStep> out;
    for (const auto& message : shards[shard]->Sent(v1::ControlMessage::kMeasure))
      out.push_back(message.measure());
    return out;
  }
  std::vector<v1::CommitStep> Commits(size_t shard) const {
    std::vector<v1::CommitStep> out;
    for (const auto& message : shards[shard]->Sent(v1::ControlMessage::kCommit))
      out.push_back(message.commit());
    return out;
  }

  // The shard answers what it was asked last: its part of the mean has this sum of squares.
  void Measured(size_t shard, double squares) {
    const v1::MeasureStep asked = Asked(shard).back();
    v1::ShardReport report;
    v1::StepMeasured& measured = *report.mutable_measured();
    measured.set_step(asked.step());
    *measured.mutable_parts() = asked.parts();
    measured.set_gradient_factor(asked.gradient_factor());
    ExactSum sum;
    sum.Add(squares);
    measured.set_gradient(sum.Serialize());
    shards[shard]->events.report(report);
  }
  void StageAll(uint64_t step) {
    for (const auto& shard : shards) shard->Staged(step);
  }
};

std::vector<uint32_t> Parts(const v1::CommitStep& commit) {
  return {commit.parts().begin(), commit.parts().end()};
}

TEST_CASE("A step is measured on all shards once its parts are decided, and then committed") {
  NormsFixture f;
  f.StartJob();
  f.shards[0]->Staged(0);
  CHECK(f.Asked(0).empty());
  f.shards[1]->Staged(0);
  for (size_t shard : {0, 1}) {
    REQUIRE(f.Asked(shard).size() == 1);
    CHECK((f.Asked(shard)[0].step() == 0 && f.Asked(shard)[0].parts_size() == 2));
    CHECK(f.Commits(shard).empty());
  }
  f.shards[1]->Staged(0);  // a repeat
  f.Measured(1, 7);
  CHECK(f.Commits(0).empty());
  CHECK(f.Status().step() == 0);
  f.Measured(0, 9);
  for (size_t shard : {0, 1}) {
    REQUIRE(f.Commits(shard).size() == 1);
    CHECK(f.Commits(shard)[0].gradient_factor() == 0.25);
    CHECK(f.Asked(shard).size() == 1);
  }
  CHECK(f.Status().step() == 1);
  f.StageAll(1);
  CHECK(f.Asked(0).size() == 2);
}

TEST_CASE("A job that needs no norms has no round") {
  CoordinatorFixture f(kSync, 2, 2);
  f.config.mutable_train()->set_clip_norm(1);  // of pushes
  f.StartJob();
  f.Steps(2);
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kMeasure).empty());
  CHECK(f.Status().step() == 2);
}

TEST_CASE("LAMB with a clipped mean has two rounds") {
  NormsFixture f;
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_LAMB);
  f.StartJob();
  f.StageAll(0);
  for (size_t shard : {0, 1}) f.Measured(shard, 2);
  REQUIRE(f.Asked(0).size() == 2);
  CHECK(f.Asked(0)[1].gradient_factor() == 0.5);
  CHECK(f.Commits(0).empty());
  for (size_t shard : {0, 1}) f.Measured(shard, 0);
  REQUIRE(f.Commits(1).size() == 1);
  CHECK(f.Commits(1)[0].tensor_factors_size() == 1);
}

TEST_CASE("With backup workers a part that comes while a step is measured comes too late") {
  NormsFixture f(4);
  f.config.mutable_consistency()->set_backup_workers(1);
  f.train_examples = 8 * 4 * 5;
  f.StartJob();
  for (const auto& shard : f.shards) shard->StagedParts(0, {1, 2, 3});
  f.Measured(0, 9);
  for (const auto& shard : f.shards) shard->StagedParts(0, {0, 1, 2, 3});
  CHECK(f.Asked(1).size() == 1);
  f.Measured(1, 7);
  CHECK(Parts(f.Commits(1)[0]) == std::vector<uint32_t>{1, 2, 3});
}

TEST_CASE("Refused parts are left out before a step is measured") {
  NormsFixture f;
  f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.StartJob();
  f.shards[0]->Staged(0, {1}, "the gradient of w[3] is not finite");
  f.shards[1]->Staged(0);
  REQUIRE(f.Asked(0).size() == 1);
  CHECK((f.Asked(0)[0].parts_size() == 1 && f.Asked(0)[0].parts(0) == 0));
  for (size_t shard : {0, 1}) f.Measured(shard, 2);
  CHECK(Parts(f.Commits(0)[0]) == std::vector<uint32_t>{0});
  // If no part is left, there is nothing to be measured.
  for (const auto& shard : f.shards) shard->Staged(1, {0, 1}, "nothing is finite");
  CHECK(f.Asked(0).size() == 1);
  REQUIRE(f.Commits(0).size() == 2);
  CHECK(f.Commits(0)[1].parts_size() == 0);
}

TEST_CASE("A norm that is not finite is treated as a gradient that is not") {
  NormsFixture f;
  const bool stop = GENERATE(false, true);
  f.config.mutable_consistency()->set_on_nonfinite(stop ? v1::ConsistencyConfig::ON_NONFINITE_STOP
                                                        : v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  f.StartJob();
  f.StageAll(0);
  f.Measured(0, INFINITY);
  f.Measured(1, 1);
  f.Run(absl::Seconds(2));
  CHECK(f.ends == (stop ? 1 : 0));
  if (stop) {
    CHECK(f.failure_kind == v1::FAILURE_DIVERGED);
    CHECK_THAT(f.failure, Contains("the norm of the mean gradient is not finite"));
  } else {
    REQUIRE(f.Commits(1).size() == 1);
    CHECK(f.Commits(1)[0].parts_size() == 0);
    CHECK(f.Status().step() == 1);
  }
}

TEST_CASE("A shard or ps:0 is lost between measuring and commit: the step is staged and measured again") {
  NormsFixture f;
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.StageAll(0);
  f.Measured(0, 5);
  if (GENERATE(false, true)) {
    f.Restart();
  } else {
    f.shards[1]->Kill();
    f.Measured(0, 5);  // was on its way
    f.Run(absl::Seconds(1));
  }
  CHECK(f.Commits(0).empty());
  const auto one = f.Join(0, 2000), two = f.Join(1, 2001);
  for (const auto& join : {one, two}) f.Heartbeat(join->reply());
  REQUIRE(f.Status().state() == v1::RUNNING);
  const size_t asked = f.Asked(0).size();
  f.StageAll(0);
  REQUIRE(f.Asked(0).size() == asked + 1);
  f.Measured(1, 3);
  CHECK(f.Commits(0).empty());  // the sums of the first attempt are forgotten
  f.Measured(0, 1);
  REQUIRE(f.Commits(0).size() == 1);
  CHECK(f.Commits(0)[0].gradient_factor() == 0.5);
}

TEST_CASE("A server that cannot measure is refused by name in a job that needs norms") {
  NormsFixture f;
  if (GENERATE(true, false)) {
    f.config.mutable_train()->clear_clip();
    f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_LAMB);
  }
  f.shards[1]->measures_steps = false;
  f.Start();
  for (uint32_t rank : {0, 1}) f.Join(rank);
  CHECK(f.ends == 1);
  CHECK(f.failure_kind == v1::FAILURE_CONFIG);
  CHECK_THAT(f.failure, Contains("ps:1") && Contains("1.10") && Contains("train.clip"));
}

TEST_CASE("A shard that answers what it was not asked fails the job") {
  NormsFixture f;
  f.StartJob();
  f.StageAll(0);
  v1::ShardReport report;
  report.mutable_measured()->set_step(5);
  f.shards[1]->events.report(report);
  f.Run(absl::Seconds(2));
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1"));
}

}  // namespace
}  // namespace weir
