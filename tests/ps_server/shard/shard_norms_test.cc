// A shard in sync, in a job whose steps depend on norms over all shards: it measures, and commits with
// factors.
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/exact_sum.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;

void Push(ShardFixture& f, uint64_t step, uint32_t part, float value) {
  TestPush push{part % 2, step, part};
  push.value = value;
  f.Push(push);
}

v1::MeasureStep Step(uint64_t step, const std::vector<uint32_t>& parts, double factor = 0) {
  v1::MeasureStep measure;
  measure.set_step(step);
  measure.mutable_parts()->Add(parts.begin(), parts.end());
  measure.set_gradient_factor(factor);
  return measure;
}

void Measure(ShardFixture& f, const v1::MeasureStep& measure) {
  v1::ControlMessage message;
  *message.mutable_measure() = measure;
  f.Control(message);
}

std::vector<v1::ShardReport> Measured(ShardFixture& f) { return f.Reports(v1::ShardReport::kMeasured); }

void Commit(ShardFixture& f, const v1::CommitStep& commit) {
  v1::ControlMessage message;
  *message.mutable_commit() = commit;
  f.Control(message);
}

double ValueOf(const std::string& bytes) {
  const auto sum = ExactSum::Parse(bytes);
  REQUIRE(sum.ok());
  return sum->value();
}

TEST_CASE("The mean of the decided parts is measured, and the commit scales it") {
  ShardFixture f(kSync);
  f.config.mutable_consistency()->set_backup_workers(1);
  f.install.set_parts(3);
  f.Start();
  for (uint32_t part : {0, 1, 2}) Push(f, 0, part, static_cast<float>(1 + part));
  Measure(f, Step(0, {0, 2}));
  const auto measured = Measured(f);
  REQUIRE(measured.size() == 1);
  const v1::StepMeasured& answer = measured[0].measured();
  CHECK((answer.step() == 0 && answer.parts_size() == 2 && answer.parts(1) == 2));
  CHECK(answer.gradient_factor() == 0);
  CHECK(ValueOf(answer.gradient()) == 160);  // 40 elements of (1 + 3) / 2
  CHECK(answer.tensors().empty());
  CHECK(f.Weights() == All(0));  // nothing has changed
  CHECK(f.shard->counters().version == 0);
  v1::CommitStep commit;
  commit.set_step(0);
  commit.add_parts(0);
  commit.add_parts(2);
  commit.set_gradient_factor(0.25);
  Commit(f, commit);
  CHECK(f.Weights() == All(0.5f));
  // The step is past: nobody waits for an answer.
  Measure(f, Step(0, {0, 2}));
  CHECK(Measured(f).empty());
  CHECK(f.Reports(v1::ShardReport::kFailed).empty());
}

TEST_CASE("LAMB: weights and update are measured by tensor, and the commit's factors are of tensors") {
  ShardFixture f(kSync);
  f.model.tensors = {{"a", {10}, TensorKind::kParameter, {Initializer::Kind::kConstant, 3}},
                     {"b", {30}, TensorKind::kParameter, {Initializer::Kind::kConstant, 1}}};
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_LAMB);
  f.config.mutable_optimizer()->set_epsilon(1e-6f);
  f.Start();
  Push(f, 0, 0, 2);
  Push(f, 0, 1, 2);
  Measure(f, Step(0, {0, 1}, 1));
  const auto measured = Measured(f);
  REQUIRE(measured.size() == 1);
  const v1::StepMeasured& answer = measured[0].measured();
  CHECK(answer.gradient_factor() == 1);
  REQUIRE(answer.tensors_size() == 2);
  CHECK((answer.tensors(0).tensor() == 0 && answer.tensors(1).tensor() == 1));
  CHECK(ValueOf(answer.tensors(0).weights()) == 90);
  CHECK(ValueOf(answer.tensors(1).weights()) == 30);
  // Adam's first update is the gradient's sign.
  CHECK(ValueOf(answer.tensors(0).update()) == Approx(10));
  CHECK(ValueOf(answer.tensors(1).update()) == Approx(30));
  v1::CommitStep commit;
  commit.set_step(0);
  commit.add_parts(0);
  commit.add_parts(1);
  commit.add_tensor_factors(3);
  commit.add_tensor_factors(0.5);
  SECTION("with as many factors as tensors") {
    Commit(f, commit);
    const std::vector<float> weights = f.Weights();
    CHECK(weights[9] == Approx(3 + 3));  // the rate of the fixture is -1
    CHECK(weights[10] == Approx(1 + 0.5));
  }
  SECTION("with factors of another model") {
    commit.add_tensor_factors(1);
    Commit(f, commit);
    const auto failed = f.Reports(v1::ShardReport::kFailed);
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].failed().kind() == v1::FAILURE_INTERNAL);
    CHECK_THAT(failed[0].failed().error(), Contains("3 tensors") && Contains("the model has 2"));
    CHECK(f.shard->counters().version == 0);
  }
}

TEST_CASE("A step that the shard cannot measure fails it, and the coordinator hears why") {
  ShardFixture f(kSync);
  f.Start();
  Push(f, 0, 0, 1);
  SECTION("not all parts have come") { Measure(f, Step(0, {0, 1})); }
  SECTION("the step is yet to come") { Measure(f, Step(1, {0, 1})); }
  SECTION("a part is refused") {
    TestPush bad{1, 0, 1};
    bad.bad_element = 7;
    f.Push(bad);
    Measure(f, Step(0, {0, 1}));
  }
  const auto failed = f.Reports(v1::ShardReport::kFailed);
  REQUIRE(failed.size() == 1);
  CHECK_THAT(failed[0].failed().error(), Contains("cannot measure step"));
  CHECK(Measured(f).empty());
}

TEST_CASE("What no coordinator asks for is measured as nothing") {
  ShardFixture f(kSync);  // SGD
  f.Start();
  Push(f, 0, 0, 1);
  Push(f, 0, 1, 1);
  Measure(f, Step(0, {}));
  Measure(f, Step(0, {0, 1}, NAN));
  const auto measured = Measured(f);
  REQUIRE(measured.size() == 2);
  CHECK(measured[0].measured().gradient().empty());
  CHECK(measured[1].measured().tensors().empty());
}

TEST_CASE("A shard says that it measures steps") {
  ShardFixture f(kSync);
  f.Start();
  v1::ControlMessage hello;
  hello.mutable_hello();
  f.Control(hello);
  CHECK(f.Reports(v1::ShardReport::kAttached).back().attached().measures_steps());
}

}  // namespace
}  // namespace weir
