#include "ps_server/coordinator/epoch_evaluations.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

// 20 examples an epoch, batches of 8, steps of 2 batches: epochs end with the batches 3, 5, 8, 10, ... and so
// with the steps 2, 3, 4, 5, ...
EpochEvaluations::Options Of(bool sync, uint64_t total = 1000) {
  EpochEvaluations::Options options;
  options.sync = sync;
  options.train_examples = 20;
  options.batch_size = 8;
  options.batches_a_unit = sync ? 2 : 1;
  options.total = total;
  options.total_examples = total * options.batch_size * options.batches_a_unit;
  options.limit = absl::Seconds(300);
  return options;
}

v1::Evaluation Report(const EpochEvaluations& of, uint64_t who, uint64_t version, double loss = 0.5) {
  v1::Evaluation report;
  report.set_order(of.OrderFor(who).value().id());
  report.set_version(version);
  report.set_examples(10);
  report.set_test_loss(loss);
  report.set_test_accuracy(0.75);
  return report;
}

// "1@2=0.5 2@-": epoch, step, loss.
std::string Text(const EpochEvaluations& of) {
  return absl::StrJoin(of.entries(), " ", [](std::string* out, const v1::EpochEvaluation& e) {
    absl::StrAppend(out, e.epoch(), "@", e.has_step() ? absl::StrCat(e.step()) : "-",
                    e.has_test_loss() ? absl::StrCat("=", e.test_loss()) : "");
  });
}

TEST_CASE("sync: the step that ends an epoch is evaluated; no other is made until it is read") {
  EpochEvaluations of(Of(true));
  of.GoTo(0);
  of.SetKnown();
  of.Advance(1);
  CHECK_FALSE(of.due());
  of.Advance(2);
  REQUIRE(of.due());
  CHECK_FALSE(of.Holds());
  of.Ask(7, absl::UnixEpoch());
  CHECK(of.Holds());
  CHECK(of.OrderFor(7)->epoch() == 1);
  CHECK_FALSE(of.OrderFor(8).has_value());
  of.OnRead(8, {2, 2});
  of.OnRead(7, {1, 1});  // of an earlier read
  CHECK(of.Holds());
  of.OnRead(7, {2, 2});
  CHECK_FALSE(of.Holds());
  // The next epoch ends before the result: then it waits for the result.
  of.Advance(3);
  CHECK_FALSE(of.due());
  CHECK(of.Holds());
  const v1::Evaluation report = Report(of, 7, 2);
  CHECK_FALSE(of.OnReport(8, report, 2).has_value());
  CHECK(of.OnReport(7, report, 2)->test_accuracy() == 0.75);
  CHECK_FALSE(of.OnReport(7, report, 2).has_value());  // a repeat
  CHECK(of.due());
  CHECK(Text(of) == "1@2=0.5");
}

TEST_CASE("sync: another one is asked while no further step was made; else there is no result") {
  EpochEvaluations of(Of(true));
  of.GoTo(0);
  of.SetKnown();
  of.Advance(2);
  of.Ask(7, absl::UnixEpoch());
  of.OnGone(8);
  CHECK_FALSE(of.due());
  SECTION("gone before it had read") {
    of.OnGone(7);
    REQUIRE(of.due());
    CHECK(of.MayAsk(8));
    of.Ask(8, absl::UnixEpoch());
    of.OnRead(8, {2});
    REQUIRE(of.OnReport(8, Report(of, 8, 2), 2).has_value());
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
    CHECK_FALSE(of.OnReport(7, failed, 0).has_value());
    REQUIRE(of.due());
    CHECK_FALSE(of.MayAsk(7));
    of.GiveUp();
    CHECK_FALSE(of.due());
    CHECK(of.MayAsk(7));  // for the next epoch
    CHECK(Text(of) == "1@-");
  }
  SECTION("a report of other weights is none") {
    CHECK_FALSE(of.OnReport(7, Report(of, 7, 3), 3).has_value());
    CHECK(of.due());
    CHECK(Text(of).empty());
  }
  SECTION("nobody comes any more") {
    of.OnGone(7);
    of.Advance(3);
    of.Ask(8, absl::UnixEpoch());
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
  EpochEvaluations of(Of(false));
  of.GoTo(0);
  of.SetKnown();
  of.Advance(4);
  REQUIRE(of.due());
  of.Ask(7, absl::UnixEpoch());
  CHECK_FALSE(of.Holds());
  of.Advance(10);
  CHECK_FALSE(of.due());
  REQUIRE(of.OnReport(7, Report(of, 7, 9), 3).has_value());
  REQUIRE(of.due());
  of.Ask(7, absl::UnixEpoch());
  CHECK(of.OrderFor(7)->epoch() == 4);
  SECTION("done") { REQUIRE(of.OnReport(7, Report(of, 7, 11, 0.25), 5).has_value()); }
  SECTION("done by another one, for those that have ended by then, too") {
    of.Advance(13);
    of.OnGone(7);
    REQUIRE(of.due());
    of.Ask(8, absl::UnixEpoch());
    CHECK(of.OrderFor(8)->epoch() == 5);
    REQUIRE(of.OnReport(8, Report(of, 8, 13, 0.25), 5).has_value());
    CHECK(Text(of) == "1@3=0.5 2@5=0.25 3@5=0.25 4@5=0.25 5@5=0.25");
    return;
  }
  CHECK(Text(of) == "1@3=0.5 2@5=0.25 3@5=0.25 4@5=0.25");
}

TEST_CASE("The final evaluation is that of the epoch which ends with the job") {
  const bool sync = GENERATE(true, false);
  EpochEvaluations of(Of(sync, sync ? 3 : 5));  // two epochs
  of.GoTo(0);
  of.SetKnown();
  of.Advance(sync ? 2 : 3);
  of.Ask(7, absl::UnixEpoch());
  of.Advance(sync ? 3 : 5);
  CHECK_FALSE(of.due());
  v1::Evaluation final;
  final.set_examples(10);
  final.set_test_loss(0.125);
  final.set_test_accuracy(-1);
  of.Final(final, 3);
  // The evaluation that was under way may still arrive.
  CHECK(Text(of) == "2@3=0.125");
  CHECK_FALSE(of.entries()[0].has_test_accuracy());
  SECTION("and does") {
    REQUIRE(of.OnReport(7, Report(of, 7, sync ? 2 : 4), 2).has_value());
    CHECK(Text(of) == "1@2=0.5 2@3=0.125");
  }
  SECTION("or does not") {
    of.OnGone(7);
    CHECK_FALSE(of.due());
    CHECK(Text(of) == "1@- 2@3=0.125");
  }
}

TEST_CASE("An epoch that the job does not complete has no entry") {
  EpochEvaluations::Options options = Of(true, 4);
  options.total_examples = GENERATE(50, 60);  // two and a half epochs, or three, are as many steps
  EpochEvaluations of(options);
  of.GoTo(0);
  of.SetKnown();
  for (const uint64_t step : {2, 3}) {
    of.Advance(step);
    of.Ask(7, absl::UnixEpoch());
    of.OnRead(7, {step});
    REQUIRE(of.OnReport(7, Report(of, 7, step), step).has_value());
  }
  of.Advance(4);
  CHECK_FALSE(of.due());
  v1::Evaluation final;
  final.set_examples(10);
  final.set_test_loss(0.125);
  of.Final(final, 4);
  CHECK(Text(of) == (options.total_examples == 50 ? "1@2=0.5 2@3=0.5" : "1@2=0.5 2@3=0.5 3@4=0.125"));
}

TEST_CASE("An epoch whose last examples are left out ends with the job") {
  EpochEvaluations::Options options = Of(true, 6);
  options.total_examples = 100;  // 5 epochs: the seventh step would have 4 examples
  options.waits = GENERATE(true, false);
  EpochEvaluations of(options);
  of.GoTo(0);
  of.SetKnown();
  for (const uint64_t step : {2, 3, 4, 5}) {
    of.Advance(step);
    of.Ask(7, absl::UnixEpoch());
    of.OnRead(7, {step});
    REQUIRE(of.OnReport(7, Report(of, 7, step), step).has_value());
  }
  const std::string before = "1@2=0.5 2@3=0.5 3@4=0.5 4@5=0.5";
  CHECK(Text(of) == before);
  if (options.waits) CHECK(of.work_end() == 6);
  of.Advance(6);
  CHECK(of.due() == options.waits);
  if (options.waits) {
    of.Ask(7, absl::UnixEpoch());
    of.OnRead(7, {6});
    REQUIRE(of.OnReport(7, Report(of, 7, 6), 6).has_value());
    CHECK(of.AtNewestEnd());
  } else {
    v1::Evaluation final;
    final.set_examples(10);
    final.set_test_loss(0.5);
    of.Final(final, 6);
  }
  CHECK(Text(of) == before + " 5@6=0.5");
}

TEST_CASE("Where nobody evaluates there are no entries, and nothing waits") {
  const bool sync = GENERATE(true, false);
  EpochEvaluations of(Of(sync));
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
  of.Ask(7, absl::UnixEpoch());
  CHECK(of.OrderFor(7)->epoch() == 5);
  CHECK(of.entries().empty());
}

TEST_CASE("A job that goes back evaluates again what comes again") {
  EpochEvaluations of(Of(true));
  of.GoTo(0);
  of.SetKnown();
  for (const uint64_t step : {2, 3, 4}) {
    of.Advance(step);
    of.Ask(7, absl::UnixEpoch());
    of.OnRead(7, {step});
    REQUIRE(of.OnReport(7, Report(of, 7, step), step).has_value());
  }
  of.Advance(5);
  of.Ask(7, absl::UnixEpoch());
  of.GoTo(3);
  CHECK(Text(of) == "1@2=0.5 2@3=0.5");
  CHECK_FALSE(of.OrderFor(7).has_value());
  CHECK_FALSE(of.due());
  of.Advance(4);
  CHECK(of.due());
}

TEST_CASE("What a checkpoint has of earlier epochs stays, and what it lacks has no result") {
  EpochEvaluations before(Of(true));
  before.GoTo(0);
  before.SetKnown();
  before.Advance(2);
  before.Ask(7, absl::UnixEpoch());
  before.OnRead(7, {2});
  REQUIRE(before.OnReport(7, Report(before, 7, 2), 2).has_value());
  google::protobuf::RepeatedPtrField<v1::EpochEvaluation> saved(before.entries().begin(),
                                                                before.entries().end());
  EpochEvaluations of(Of(true));
  of.Restore(saved);
  SECTION("between two ends") {
    of.GoTo(6);  // after epoch 4
    CHECK(Text(of) == "1@2=0.5 2@- 3@- 4@-");
    CHECK_FALSE(of.due());
  }
  SECTION("at an end, whose weights are there again") {
    of.GoTo(3);
    REQUIRE(of.due());
    of.Ask(9, absl::UnixEpoch());
    CHECK(of.OrderFor(9)->epoch() == 2);
  }
  SECTION("with another every_epochs") {
    EpochEvaluations::Options options = Of(true);
    options.every_epochs = 3;
    EpochEvaluations third(options);
    third.Restore(saved);
    third.GoTo(2);
    third.Advance(3);
    CHECK_FALSE(third.due());
    third.Advance(4);
    REQUIRE(third.due());
    third.Ask(9, absl::UnixEpoch());
    CHECK(third.OrderFor(9)->epoch() == 3);
  }
}

TEST_CASE("The newest entries are kept, and a loss that is not finite is none") {
  EpochEvaluations of(Of(true, 1'000'000));
  of.GoTo(0);
  of.SetKnown();
  const uint64_t last = EpochEvaluations::kMostEntries + 5;
  uint64_t made = 0;
  for (uint64_t step = 2; made < last; ++step) {
    of.Advance(step);
    while (of.due()) {
      of.Ask(7, absl::UnixEpoch());
      of.OnRead(7, {step});
      REQUIRE(of.OnReport(7, Report(of, 7, step, INFINITY), step).has_value());
      made = of.entries().back().epoch();
    }
  }
  CHECK(of.entries().size() == EpochEvaluations::kMostEntries);
  CHECK(of.entries().back().epoch() >= last);
  CHECK_FALSE(of.entries().back().has_test_loss());
  CHECK(of.entries().back().test_accuracy() == 0.75);
}

TEST_CASE("every_epochs 0 evaluates none") {
  EpochEvaluations::Options options = Of(true);
  options.every_epochs = 0;
  EpochEvaluations of(options);
  of.GoTo(0);
  of.SetKnown();
  of.Advance(10);
  CHECK_FALSE(of.due());
  of.Final(v1::Evaluation(), 10);
  CHECK(of.entries().empty());
}

}  // namespace
}  // namespace weir
