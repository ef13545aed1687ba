#include "ps_server/coordinator/evaluation/job_evaluations.h"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

// sync: 20 examples an epoch, steps of 10, 10 epochs. So epoch e ends with step 2e.
constexpr uint64_t kSteps = 20;

v1::JobConfig Config() {
  v1::JobConfig config;
  config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_SYNC);
  config.mutable_consistency()->set_parts(1);
  config.mutable_data()->set_batch_size(10);
  config.mutable_train()->set_epochs(10);
  config.mutable_cluster()->set_wait_seconds(60);
  config.mutable_evaluation()->set_every_epochs(1);
  return config;
}

v1::Evaluation Result(const JobEvaluations& of, uint64_t member, uint64_t step, double loss) {
  v1::Evaluation result;
  result.set_order(of.OrderFor(member).value().id());
  result.set_version(step);
  result.set_examples(100);
  result.set_test_loss(loss);
  return result;
}

auto Members(std::vector<uint64_t> incarnations) {
  return [incarnations] { return incarnations; };
}

// Member 7 evaluates the epoch that ends with this step.
void Evaluate(JobEvaluations& of, uint64_t step, double loss) {
  of.Advance(step);
  REQUIRE(of.AskOneOf(Members({7}), true, absl::UnixEpoch()));
  of.OnReport(7, Result(of, 7, step, loss), step);
}

struct Fixture : CheckpointsFixture {
  explicit Fixture(const v1::JobConfig& of_job)
      : CheckpointsFixture(of_job), of(job, checkpoints, [this] { ++best_saved; }) {}

  int best_saved = 0;
  JobEvaluations of;
};

TEST_CASE("Before the job's length is known nothing is evaluated, held or awaited") {
  const v1::JobConfig config = Config();
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.Advance(2);
  CHECK_FALSE(of.AskOneOf(Members({7}), true, absl::UnixEpoch()));
  CHECK_FALSE(of.open());
  CHECK_FALSE(of.Holds());
  CHECK(of.entries().empty());
  CHECK_FALSE(of.SetWorkEnd(0));
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  of.Advance(2);
  CHECK(of.open());
  of.SetLength(JobSize());
  CHECK_FALSE(of.open());
}

TEST_CASE("The first evaluator that has not failed is asked; when all have, the epoch has no result") {
  const v1::JobConfig config = Config();
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  of.Advance(2);
  // No member can evaluate yet, but one may come.
  CHECK_FALSE(of.AskOneOf(Members({}), true, absl::UnixEpoch()));
  CHECK(of.open());
  REQUIRE(of.AskOneOf(Members({7, 8}), true, absl::UnixEpoch()));
  CHECK(of.OrderFor(7)->epoch() == 1);
  v1::Evaluation failed = Result(of, 7, 2, 1);
  failed.set_examples(0);
  of.OnReport(7, failed, 2);
  CHECK(of.entries().empty());
  REQUIRE(of.AskOneOf(Members({7, 8}), true, absl::UnixEpoch()));
  CHECK(of.OrderFor(8)->epoch() == 1);
  of.OnGone(8);
  CHECK_FALSE(of.AskOneOf(Members({7}), true, absl::UnixEpoch()));
  CHECK_FALSE(of.open());
  REQUIRE(of.entries().size() == 1);
  CHECK_FALSE(of.entries()[0].has_step());
}

// An evaluation of the job's end.
v1::Evaluation OfEnd(double loss, bool validation) {
  v1::Evaluation result;
  result.set_version(kSteps);
  result.set_examples(100);
  result.set_test_loss(loss);
  result.set_weights_sha256("ab");
  result.set_validation(validation);
  result.set_final(!validation);
  return result;
}

TEST_CASE(
    "The last epoch's result is the validation set's, where there is one, and the end's the test set's") {
  const v1::JobConfig config = Config();
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  for (uint64_t step = 2; step < kSteps; step += 2) Evaluate(of, step, 0.5);
  of.Advance(kSteps);
  const bool validates = GENERATE(false, true);
  if (validates) {
    CHECK_FALSE(of.OnUnasked(OfEnd(0.25, /*validation=*/true), kSteps));
    CHECK(of.AwaitsFinal());
  }
  CHECK(of.OnUnasked(OfEnd(0.75, /*validation=*/false), kSteps));
  REQUIRE(of.entries().size() == 10);
  CHECK(of.entries()[9].test_loss() == (validates ? 0.25 : 0.75));
  CHECK(of.entries()[9].validation() == validates);
  CHECK(of.newest().test_loss() == 0.75);
  CHECK_FALSE(of.newest().validation());
}

TEST_CASE("The best epoch is the one whose weights a checkpoint holds") {
  v1::JobConfig config = Config();
  config.mutable_evaluation()->set_keep_best(true);
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  CHECK(of.waits());
  CHECK(of.SetWorkEnd(0));
  CHECK(of.work_end() == 2);

  f.step = 2;
  Evaluate(of, 2, 0.5);
  CHECK(of.newest().test_loss() == 0.5);
  CHECK_FALSE(of.open());
  CHECK(of.busy());
  // No work is done until the weights are saved.
  CHECK_FALSE(of.SetWorkEnd(2));
  CHECK(of.work_end() == 2);
  v1::CoordinatorState saving;
  of.Save(2, &saving);
  CHECK(saving.best().evaluation().epoch() == 1);
  CHECK(saving.best().checkpoint() == 2);
  SECTION("saved") {
    f.Write();
    CHECK(f.best_saved == 1);
    CHECK_FALSE(of.busy());
    CHECK(of.best()->checkpoint() == 2);
    CHECK(of.SetWorkEnd(2));
    CHECK(of.work_end() == 4);
    Evaluate(of, 4, 0.6);
    CHECK_FALSE(of.busy());
    f.step = 6;
    Evaluate(of, 6, 0.4);
    CHECK(of.busy());
    f.Write();
    CHECK(of.best()->checkpoint() == 6);
    // A later coordinator continues from the saved state.
    v1::CoordinatorState state;
    of.Save(7, &state);
    Fixture later(config);
    later.of.SetLength(SizeOf(config, 1, 20));
    later.of.Restore(state);
    later.of.GoTo(6);
    CHECK(later.of.best()->checkpoint() == 6);
    CHECK(later.of.entries().size() == 3);
  }
  SECTION("not saved") {
    f.written.set_error("no space");
    f.Write();
    CHECK(f.best_saved == 1);
    CHECK_FALSE(of.best().has_value());
    CHECK_FALSE(of.busy());
    f.step = 4;
    Evaluate(of, 4, 0.6);
    CHECK(of.busy());
  }
  SECTION("the job is over meanwhile") {
    f.over = true;
    f.Write();
    CHECK(f.best_saved == 0);
    CHECK_FALSE(of.best().has_value());
  }
}

TEST_CASE("The job stops early at the end of the epoch that brings patience to its end, not later") {
  v1::JobConfig config = Config();
  config.mutable_evaluation()->set_patience(1);
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  Evaluate(of, 2, 0.5);
  CHECK(of.WhyItStopsHere().empty());
  Evaluate(of, 4, 0.5);
  const std::string why = of.WhyItStopsHere();
  CHECK_FALSE(why.empty());
  of.StopEarly(why);
  CHECK(of.stopped_early() == why);
  CHECK(of.GoBack(/*at_end=*/false));
  CHECK(of.stopped_early().empty());
  CHECK_FALSE(of.GoBack(/*at_end=*/false));
  of.Advance(5);
  CHECK(of.WhyItStopsHere().empty());
  // If a coordinator finds the job ended, the job's position does not matter.
  of.StoppedBefore(v1::CoordinatorState());
  CHECK(of.stopped_early() == why);
  v1::CoordinatorState end;
  of.StopEarly("for another reason");
  of.Save(5, &end);
  CHECK(end.stop_reason() == "for another reason");
  of.GoBack(/*at_end=*/false);
  of.StoppedBefore(end);
  CHECK(of.stopped_early() == "for another reason");
}

TEST_CASE("The hash of the final weights comes without an evaluation, and is no final one") {
  const v1::JobConfig config = Config();
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  v1::Evaluation evaluation, hash;
  evaluation.set_examples(100);
  evaluation.set_test_loss(0.5);
  hash.set_weights_sha256("ab12");
  CHECK_FALSE(of.OnUnasked(evaluation, kSteps));
  CHECK_FALSE(of.OnUnasked(hash, kSteps));
  CHECK(of.newest().weights_sha256() == "ab12");
  CHECK(of.newest().test_loss() == 0.5);
  CHECK(of.AwaitsFinal());
  // A late periodic evaluation does not hide the final one.
  CHECK_FALSE(of.OnUnasked(evaluation, kSteps));
  CHECK(of.newest().weights_sha256() == "ab12");
  of.GoBack(/*at_end=*/false);
  CHECK(of.newest().weights_sha256().empty());
  CHECK(of.newest().test_loss() == 0.5);
}

TEST_CASE("The final evaluation stays the newest, and is valid as long as the job is at its end") {
  const v1::JobConfig config = Config();
  Fixture f(config);
  JobEvaluations& of = f.of;
  of.SetLength(SizeOf(config, 1, 20));
  of.GoTo(0);
  v1::Evaluation evaluation;
  evaluation.set_examples(100);
  CHECK_FALSE(of.OnUnasked(evaluation, kSteps));
  CHECK(of.newest().examples() == 100);
  CHECK(of.AwaitsFinal());
  evaluation.set_final(true);
  evaluation.set_test_loss(0.25);
  CHECK(of.OnUnasked(evaluation, kSteps));
  CHECK_FALSE(of.AwaitsFinal());
  evaluation.set_final(false);
  evaluation.set_test_loss(9);
  CHECK_FALSE(of.OnUnasked(evaluation, kSteps));
  CHECK(of.newest().test_loss() == 0.25);
  of.GoBack(/*at_end=*/true);
  CHECK(of.final());
  of.GoBack(/*at_end=*/false);
  CHECK(of.AwaitsFinal());
  CHECK(of.newest().examples() == 0);
  of.ExpectNoFinal();
  CHECK_FALSE(of.AwaitsFinal());
  of.GoBack(/*at_end=*/true);
  CHECK_FALSE(of.AwaitsFinal());
}

}  // namespace
}  // namespace weir
