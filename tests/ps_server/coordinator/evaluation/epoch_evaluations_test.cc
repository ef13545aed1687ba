#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "ps_server/coordinator/evaluation/job_evaluations.h"
#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

// 20 examples an epoch, batches of 8, steps of 2 batches: epochs end with the batches 3, 5, 8, 10, ... and so
// with the steps 2, 3, 4, 5, ...
struct Fixture : CheckpointsFixture {
  // `total`: steps (sync) or batches.
  explicit Fixture(bool sync, uint64_t total = 1000, std::optional<uint64_t> examples = std::nullopt,
                   bool waits = false, uint32_t every_epochs = 1)
      : CheckpointsFixture(Config(sync, waits, every_epochs)), of(job, checkpoints, [] {}) {
    JobSize size;
    size.train_examples = 20;
    size.parts = 2;
    size.steps = total;
    size.batches = sync ? 2 * total : total;
    size.examples = examples.value_or(8 * size.batches);
    of.SetLength(size);
  }
  static v1::JobConfig Config(bool sync, bool waits, uint32_t every_epochs) {
    v1::JobConfig config;
    config.mutable_consistency()->set_mode(sync ? v1::ConsistencyConfig::MODE_SYNC
                                                : v1::ConsistencyConfig::MODE_ASYNC);
    config.mutable_data()->set_batch_size(8);
    config.mutable_cluster()->set_wait_seconds(300);
    config.mutable_evaluation()->set_every_epochs(every_epochs);
    if (waits) config.mutable_evaluation()->set_patience(1000);
    return config;
  }

  JobEvaluations of;
};

bool Ask(JobEvaluations& of, std::vector<uint64_t> members) {
  return of.AskOneOf([&] { return members; }, /*workers=*/true, absl::UnixEpoch());
}

v1::Evaluation Report(const JobEvaluations& of, uint64_t who, uint64_t version, double loss = 0.5) {
  v1::Evaluation report;
  report.set_order(of.OrderFor(who).value().id());
  report.set_version(version);
  report.set_examples(10);
  report.set_test_loss(loss);
  report.set_test_accuracy(0.75);
  return report;
}

// "1@2=0.5 2@-": epoch, step, loss.
std::string Text(const JobEvaluations& of) {
  return absl::StrJoin(of.entries(), " ", [](std::string* out, const v1::EpochEvaluation& e) {
    absl::StrAppend(out, e.epoch(), "@", e.has_step() ? absl::StrCat(e.step()) : "-",
                    e.has_test_loss() ? absl::StrCat("=", e.test_loss()) : "");
  });
}

TEST_CASE("sync: the step that ends an epoch is evaluated; no other is made until it is read") {
  Fixture f(true);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  of.Advance(1);
  CHECK_FALSE(of.due());
  of.Advance(2);
  REQUIRE(of.due());
  CHECK_FALSE(of.Holds());
  REQUIRE(Ask(of, {7}));
  CHECK(of.Holds());
  CHECK(of.OrderFor(7)->epoch() == 1);
  CHECK_FALSE(of.OrderFor(8).has_value());
  of.OnRead(8, {2, 2});
  of.OnRead(7, {1, 1});  // read before the epoch's end
  CHECK(of.Holds());
  of.OnRead(7, {2, 2});
  CHECK_FALSE(of.Holds());
  // The next epoch ends before the result is known, and waits for it.
  of.Advance(3);
  CHECK_FALSE(of.due());
  CHECK(of.Holds());
  const v1::Evaluation report = Report(of, 7, 2);
  of.OnReport(8, report, 2);
  CHECK(of.entries().empty());
  of.OnReport(7, report, 2);
  REQUIRE(of.entries().size() == 1);
  CHECK(of.entries()[0].test_accuracy() == 0.75);
  of.OnReport(7, report, 2);  // a repeat
  CHECK(of.due());
  CHECK(Text(of) == "1@2=0.5");
}

TEST_CASE("sync: another one is asked while no further step was made; else there is no result") {
  Fixture f(true);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  of.Advance(2);
  REQUIRE(Ask(of, {7}));
  of.OnGone(8);
  CHECK_FALSE(of.due());
  SECTION("gone before it had read") {
    of.OnGone(7);
    REQUIRE(of.due());
    REQUIRE(Ask(of, {8}));
    of.OnRead(8, {2});
    of.OnReport(8, Report(of, 8, 2), 2);
    CHECK(Text(of) == "1@2=0.5");
  }
  SECTION("gone when a further step was made") {
    of.OnRead(7, {2});
    of.Advance(3);
    of.OnGone(7);
    CHECK(of.due());  // the second epoch, which has ended just now
    CHECK(Text(of) == "1@-");
  }
  SECTION("it could not") {
    v1::Evaluation failed = Report(of, 7, 0);
    failed.set_examples(0);
    of.OnReport(7, failed, 0);
    REQUIRE(of.due());
    CHECK_FALSE(Ask(of, {7}));
    CHECK_FALSE(of.due());
    CHECK(Text(of) == "1@-");
    of.Advance(3);
    CHECK(Ask(of, {7}));
  }
  SECTION("a report of other weights is none") {
    of.OnReport(7, Report(of, 7, 3), 3);
    CHECK(of.due());
    CHECK(Text(of).empty());
  }
  SECTION("nobody comes any more") {
    of.OnGone(7);
    of.Advance(3);
    REQUIRE(Ask(of, {8}));
    CHECK(of.OrderFor(8)->epoch() == 2);
    CHECK(Text(of) == "1@-");
  }
  SECTION("it takes too long") {
    CHECK_FALSE(of.OnTick(absl::UnixEpoch() + absl::Seconds(300)));
    CHECK(of.OnTick(absl::UnixEpoch() + absl::Seconds(301)));
    CHECK_FALSE(of.Holds());
    CHECK(Text(of) == "1@-");
  }
}

TEST_CASE("bounded, async: nobody waits, and epochs that end meanwhile share the next evaluation") {
  Fixture f(false);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  of.Advance(4);
  REQUIRE(of.due());
  REQUIRE(Ask(of, {7}));
  CHECK_FALSE(of.Holds());
  of.Advance(10);
  CHECK_FALSE(of.due());
  of.OnReport(7, Report(of, 7, 9), 3);
  REQUIRE(of.due());
  REQUIRE(Ask(of, {7}));
  CHECK(of.OrderFor(7)->epoch() == 4);
  SECTION("done") { of.OnReport(7, Report(of, 7, 11, 0.25), 5); }
  SECTION("done by another one, for those that have ended by then, too") {
    of.Advance(13);
    of.OnGone(7);
    REQUIRE(of.due());
    REQUIRE(Ask(of, {8}));
    CHECK(of.OrderFor(8)->epoch() == 5);
    of.OnReport(8, Report(of, 8, 13, 0.25), 5);
    CHECK(Text(of) == "1@3=0.5 2@5=0.25 3@5=0.25 4@5=0.25 5@5=0.25");
    return;
  }
  CHECK(Text(of) == "1@3=0.5 2@5=0.25 3@5=0.25 4@5=0.25");
}

TEST_CASE("The final evaluation is that of the epoch which ends with the job") {
  const bool sync = GENERATE(true, false);
  Fixture f(sync, sync ? 3 : 5);  // two epochs
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  of.Advance(sync ? 2 : 3);
  REQUIRE(Ask(of, {7}));
  of.Advance(sync ? 3 : 5);
  CHECK_FALSE(of.due());
  v1::Evaluation final;
  final.set_final(true);
  final.set_examples(10);
  final.set_test_loss(0.125);
  final.set_test_accuracy(-1);
  CHECK(of.OnUnasked(final, 3));
  // The evaluation that was under way may still arrive.
  CHECK(Text(of) == "2@3=0.125");
  CHECK_FALSE(of.entries()[0].has_test_accuracy());
  SECTION("and does") {
    of.OnReport(7, Report(of, 7, sync ? 2 : 4), 2);
    CHECK(Text(of) == "1@2=0.5 2@3=0.125");
  }
  SECTION("or does not") {
    of.OnGone(7);
    CHECK_FALSE(of.due());
    CHECK(Text(of) == "1@- 2@3=0.125");
  }
}

TEST_CASE("An epoch that the job does not complete has no entry") {
  const uint64_t examples = GENERATE(50, 60);  // two and a half epochs have as many steps as three
  Fixture f(true, 4, examples);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  for (const uint64_t step : {2, 3}) {
    of.Advance(step);
    REQUIRE(Ask(of, {7}));
    of.OnRead(7, {step});
    of.OnReport(7, Report(of, 7, step), step);
  }
  of.Advance(4);
  CHECK_FALSE(of.due());
  v1::Evaluation final;
  final.set_final(true);
  final.set_examples(10);
  final.set_test_loss(0.125);
  CHECK(of.OnUnasked(final, 4));
  CHECK(Text(of) == (examples == 50 ? "1@2=0.5 2@3=0.5" : "1@2=0.5 2@3=0.5 3@4=0.125"));
}

TEST_CASE("An epoch whose last examples are left out ends with the job") {
  const bool waits = GENERATE(true, false);
  Fixture f(true, 6, 100, waits);  // 5 epochs: the seventh step would have 4 examples
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  for (const uint64_t step : {2, 3, 4, 5}) {
    of.Advance(step);
    REQUIRE(Ask(of, {7}));
    of.OnRead(7, {step});
    of.OnReport(7, Report(of, 7, step), step);
  }
  const std::string before = "1@2=0.5 2@3=0.5 3@4=0.5 4@5=0.5";
  CHECK(Text(of) == before);
  of.SetWorkEnd(5);
  if (waits) CHECK(of.work_end() == 6);
  of.Advance(6);
  CHECK(of.due() == waits);
  if (waits) {
    REQUIRE(Ask(of, {7}));
    of.OnRead(7, {6});
    of.OnReport(7, Report(of, 7, 6), 6);
  } else {
    v1::Evaluation final;
    final.set_final(true);
    final.set_examples(10);
    final.set_test_loss(0.5);
    CHECK(of.OnUnasked(final, 6));
  }
  CHECK(Text(of) == before + " 5@6=0.5");
}

TEST_CASE("Where nobody evaluates there are no entries, and nothing waits") {
  const bool sync = GENERATE(true, false);
  Fixture f(sync);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  for (uint64_t progress = 1; progress <= (sync ? 6 : 11); ++progress) {
    of.Advance(progress);
    CHECK_FALSE(of.Holds());
  }
  // A worker that joins late is not asked for epochs that ended long ago.
  of.SetKnown();
  CHECK_FALSE(of.due());
  of.Advance(sync ? 7 : 13);
  REQUIRE(of.due());
  REQUIRE(Ask(of, {7}));
  CHECK(of.OrderFor(7)->epoch() == 5);
  CHECK(of.entries().empty());
}

TEST_CASE("A job that goes back evaluates again what comes again") {
  Fixture f(true);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  for (const uint64_t step : {2, 3, 4}) {
    of.Advance(step);
    REQUIRE(Ask(of, {7}));
    of.OnRead(7, {step});
    of.OnReport(7, Report(of, 7, step), step);
  }
  of.Advance(5);
  REQUIRE(Ask(of, {7}));
  of.GoTo(3);
  CHECK(Text(of) == "1@2=0.5 2@3=0.5");
  CHECK_FALSE(of.OrderFor(7).has_value());
  CHECK_FALSE(of.due());
  of.Advance(4);
  CHECK(of.due());
}

TEST_CASE("What a checkpoint has of earlier epochs stays, and what it lacks has no result") {
  Fixture earlier(true);
  JobEvaluations& before = earlier.of;
  before.GoTo(0);
  before.SetKnown();
  before.Advance(2);
  REQUIRE(Ask(before, {7}));
  before.OnRead(7, {2});
  before.OnReport(7, Report(before, 7, 2), 2);
  v1::CoordinatorState saved;
  before.Save(2, &saved);
  Fixture f(true);
  JobEvaluations& of = f.of;
  of.Restore(saved);
  SECTION("between two ends") {
    of.GoTo(6);  // after epoch 4
    CHECK(Text(of) == "1@2=0.5 2@- 3@- 4@-");
    CHECK_FALSE(of.due());
  }
  SECTION("at an end, whose weights are there again") {
    of.GoTo(3);
    REQUIRE(of.due());
    REQUIRE(Ask(of, {9}));
    CHECK(of.OrderFor(9)->epoch() == 2);
  }
  SECTION("with another every_epochs") {
    Fixture other(true, 1000, std::nullopt, /*waits=*/false, /*every_epochs=*/3);
    JobEvaluations& third = other.of;
    third.Restore(saved);
    third.GoTo(2);
    third.Advance(3);
    CHECK_FALSE(third.due());
    third.Advance(4);
    REQUIRE(third.due());
    REQUIRE(Ask(third, {9}));
    CHECK(third.OrderFor(9)->epoch() == 3);
  }
}

TEST_CASE("The newest entries are kept, and a loss that is not finite is none") {
  Fixture f(true, 1'000'000);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  const uint64_t last = JobEvaluations::kMostEntries + 5;
  uint64_t made = 0;
  for (uint64_t step = 2; made < last; ++step) {
    of.Advance(step);
    while (of.due()) {
      REQUIRE(Ask(of, {7}));
      of.OnRead(7, {step});
      of.OnReport(7, Report(of, 7, step, INFINITY), step);
      made = of.entries().back().epoch();
    }
  }
  CHECK(of.entries().size() == JobEvaluations::kMostEntries);
  CHECK(of.entries().back().epoch() >= last);
  CHECK_FALSE(of.entries().back().has_test_loss());
  CHECK(of.entries().back().test_accuracy() == 0.75);
}

TEST_CASE("every_epochs 0 evaluates none") {
  Fixture f(true, 1000, std::nullopt, /*waits=*/false, /*every_epochs=*/0);
  JobEvaluations& of = f.of;
  of.GoTo(0);
  of.SetKnown();
  of.Advance(10);
  CHECK_FALSE(of.due());
  v1::Evaluation final;
  final.set_final(true);
  CHECK(of.OnUnasked(final, 10));
  CHECK(of.entries().empty());
}

}  // namespace
}  // namespace weir
