#include "ps_server/coordinator/progress/step_norms.h"

#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;

std::string Sum(double value) {
  ExactSum sum;
  sum.Add(value);
  return sum.Serialize();
}

v1::JobConfig Config(float clip_norm, bool lamb) {
  v1::JobConfig config;
  if (clip_norm > 0) {
    config.mutable_train()->set_clip_norm(clip_norm);
    config.mutable_train()->set_clip(v1::TrainConfig::CLIP_MEAN);
  }
  if (lamb) config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_LAMB);
  return config;
}

ModelSpec Model() {
  ModelSpec model;
  model.tensors = {{"w", {40}, TensorKind::kParameter, Initializer::Zeros()},
                   {"b", {3}, TensorKind::kParameter, Initializer::Zeros()}};
  return model;
}

v1::CommitStep Step(uint64_t step, const std::vector<uint32_t>& parts = {0, 2}) {
  v1::CommitStep commit;
  commit.set_step(step);
  commit.mutable_parts()->Add(parts.begin(), parts.end());
  return commit;
}

v1::StepMeasured AnswerTo(const v1::MeasureStep& asked) {
  v1::StepMeasured measured;
  measured.set_step(asked.step());
  *measured.mutable_parts() = asked.parts();
  measured.set_gradient_factor(asked.gradient_factor());
  return measured;
}

v1::StepMeasured Gradient(const v1::MeasureStep& asked, double squares) {
  v1::StepMeasured measured = AnswerTo(asked);
  measured.set_gradient(Sum(squares));
  return measured;
}

void AddTensor(v1::StepMeasured& measured, uint32_t tensor, double weights, double update) {
  v1::TensorSums& sums = *measured.add_tensors();
  sums.set_tensor(tensor);
  sums.set_weights(Sum(weights));
  sums.set_update(Sum(update));
}

TEST_CASE("A step that needs no norms is ready at once, without a round") {
  v1::JobConfig push;  // clips pushes
  push.mutable_train()->set_clip_norm(1);
  for (StepNorms norms : {StepNorms(), StepNorms(Config(0, false)), StepNorms(push)}) {
    CHECK_FALSE(norms.needed());
    CHECK_FALSE((norms.begun() || norms.Ready(Model()).has_value()));
    norms.Begin(Step(4), 2, 2);
    CHECK(norms.begun());
    CHECK_FALSE(norms.NextRound().has_value());
    const auto commit = norms.Ready(Model());
    REQUIRE(commit.has_value());
    CHECK(commit->step.SerializeAsString() == Step(4).SerializeAsString());
    norms.Forget();
    CHECK_FALSE(norms.begun());
  }
  StepNorms norms(Config(1, true));
  CHECK(norms.needed());
  norms.Begin(Step(4, {}), 2, 2);  // no part is left
  CHECK_FALSE(norms.NextRound().has_value());
  CHECK(norms.Ready(Model())->step.SerializeAsString() == Step(4, {}).SerializeAsString());
}

TEST_CASE("The mean is clipped to a norm that is over all shards") {
  StepNorms norms(Config(2, false));
  norms.Begin(Step(7), 3, 2);
  const auto asked = norms.NextRound();
  REQUIRE(asked.has_value());
  CHECK((asked->step() == 7 && asked->parts_size() == 2 && asked->parts(1) == 2));
  CHECK(asked->gradient_factor() == 0);
  CHECK_FALSE(norms.NextRound().has_value());  // it was asked
  CHECK(norms.OnMeasured(2, Gradient(*asked, 40)).ok());
  CHECK(norms.OnMeasured(0, Gradient(*asked, 0)).ok());
  CHECK(norms.OnMeasured(2, Gradient(*asked, 40)).ok());  // a repeat counts once
  CHECK_FALSE((norms.Ready(Model()).has_value() || norms.NextRound().has_value()));
  CHECK(norms.OnMeasured(1, Gradient(*asked, 24)).ok());
  CHECK_FALSE(norms.NextRound().has_value());
  const auto commit = norms.Ready(Model());
  REQUIRE(commit.has_value());
  CHECK(commit->step.gradient_factor() == 0.25);  // 2 / sqrt(64)
  CHECK((commit->step.parts_size() == 2 && commit->step.tensor_factors().empty()));
  CHECK(commit->not_finite.empty());
  // A mean of a smaller norm stays as it is. Nothing is left of the step before.
  norms.Forget();
  norms.Begin(Step(8), 1, 2);
  CHECK(norms.OnMeasured(0, Gradient(*norms.NextRound(), 4)).ok());
  CHECK(norms.Ready(Model())->step.gradient_factor() == 1);
}

TEST_CASE("LAMB's factors are of whole tensors, and 1 where a norm is 0 or the update all but 0") {
  StepNorms norms(Config(0, true));
  ModelSpec model = Model();
  for (const char* name : {"x", "y", "z"}) {
    model.tensors.push_back({name, {3}, TensorKind::kParameter, Initializer::Zeros()});
  }
  norms.Begin(Step(0), 2, model.tensors.size());
  const auto asked = norms.NextRound();
  REQUIRE(asked.has_value());
  CHECK(asked->gradient_factor() == 1);
  v1::StepMeasured one = AnswerTo(*asked), two = AnswerTo(*asked);
  AddTensor(one, 0, 6, 1);
  AddTensor(two, 0, 3, 3);
  AddTensor(two, 1, 0, 5);
  AddTensor(one, 2, 5, 0);
  AddTensor(one, 3, 1, 1e-80);
  CHECK(norms.OnMeasured(0, one).ok());
  CHECK(norms.OnMeasured(1, two).ok());
  const auto commit = norms.Ready(model);
  REQUIRE(commit.has_value());
  CHECK(commit->step.gradient_factor() == 0);
  REQUIRE(commit->step.tensor_factors_size() ==
          5);  // nobody measured the last tensor: it is frozen, or a buffer
  CHECK(commit->step.tensor_factors(0) == 1.5);
  for (int i = 1; i < 5; ++i) CHECK(commit->step.tensor_factors(i) == 1);
}

TEST_CASE("With both, the update is that of the clipped mean") {
  StepNorms norms(Config(1, true));
  norms.Begin(Step(3), 1, 2);
  CHECK(norms.OnMeasured(0, Gradient(*norms.NextRound(), 16)).ok());
  CHECK_FALSE(norms.Ready(Model()).has_value());
  const auto second = norms.NextRound();
  REQUIRE(second.has_value());
  CHECK(second->gradient_factor() == 0.25);
  v1::StepMeasured measured = AnswerTo(*second);
  AddTensor(measured, 1, 4, 1);
  CHECK(norms.OnMeasured(0, measured).ok());
  CHECK_FALSE(norms.NextRound().has_value());
  const auto commit = norms.Ready(Model());
  CHECK(commit->step.gradient_factor() == 0.25);
  CHECK((commit->step.tensor_factors(0) == 1 && commit->step.tensor_factors(1) == 2));
}

TEST_CASE("A norm that is not finite leaves the step without parts, and names what has it") {
  StepNorms norms(Config(1, true));
  norms.Begin(Step(3), 1, 2);
  CHECK(norms.OnMeasured(0, Gradient(*norms.NextRound(), INFINITY)).ok());
  CHECK_FALSE(norms.NextRound().has_value());  // there is no update to be measured
  auto commit = norms.Ready(Model());
  CHECK_THAT(commit->not_finite, Contains("the mean gradient"));
  CHECK(commit->step.SerializeAsString() == Step(3, {}).SerializeAsString());
  const bool of_weights = GENERATE(false, true);
  StepNorms lamb(Config(0, true));
  lamb.Begin(Step(3), 1, 2);
  v1::StepMeasured measured = AnswerTo(*lamb.NextRound());
  AddTensor(measured, 1, of_weights ? INFINITY : 1, of_weights ? 1 : INFINITY);
  CHECK(lamb.OnMeasured(0, measured).ok());
  commit = lamb.Ready(Model());
  CHECK_THAT(commit->not_finite, Contains(of_weights ? "the weights of b" : "the update of b"));
  CHECK(commit->step.SerializeAsString() == Step(3, {}).SerializeAsString());
}

TEST_CASE("An answer to something else, or with bytes that are no sums, is refused") {
  StepNorms norms(Config(1, true));
  norms.Begin(Step(3), 2, 2);
  v1::StepMeasured early = AnswerTo({});
  CHECK_FALSE(norms.OnMeasured(0, early).ok());  // nothing was asked yet
  const v1::MeasureStep asked = *norms.NextRound();
  v1::StepMeasured bad = Gradient(asked, 1);
  SECTION("another step") { bad.set_step(2); }
  SECTION("other parts") { bad.add_parts(3); }
  SECTION("another round") { bad.set_gradient_factor(1); }
  SECTION("no sum") { bad.set_gradient("xy"); }
  SECTION("a tensor that the model lacks") { AddTensor(bad, 2, 1, 1); }
  SECTION("no sum of weights") {
    AddTensor(bad, 1, 1, 1);
    bad.mutable_tensors(0)->set_weights("xy");
  }
  SECTION("no sum of an update") {
    AddTensor(bad, 1, 1, 1);
    bad.mutable_tensors(0)->set_update("xy");
  }
  CHECK(norms.OnMeasured(0, bad).code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
