// `weir advise`: what it says about summaries, and which ones it refuses.
#include "cli/predict/advice.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "cli/predict/job_model.h"
#include "cli/predict/units.h"

namespace weir {
namespace {

using Catch::Contains;

// Four workers, each of whose batches takes 50 ms, worker:0's `slow` times as long.
std::string Summary(const std::string& mode, double slow, double steps_per_second,
                    const std::string& more = "") {
  const double wall = 100, steps = wall * steps_per_second;
  std::string workers;
  for (int w = 0; w < 4; ++w) {
    absl::StrAppend(&workers, w > 0 ? "," : "", "\"worker:", w,
                    "\": {\"utilization\": ", 0.05 * (w == 0 ? slow : 1) * steps_per_second,
                    ", \"clock\": ", static_cast<int>(steps), "}");
  }
  return absl::StrCat(
      R"({"mode": ")", mode, R"(", "parts": )", mode == "sync" ? "4" : "null",
      R"(, "staleness_bound": null, "ps": 1, "workers": 4, "steps": )", static_cast<int>(steps),
      R"(, "pushes": )", static_cast<int>(4 * steps), R"(, "examples": )", static_cast<int>(64 * steps),
      R"(, "wall_seconds": )", wall, R"(, "examples_per_second": )", 64 * steps_per_second,
      R"(, "train_loss": null, "test_accuracy": null, "test_auc": null, "test_loss": null,
      "version_staleness": {"p50": 0, "p99": 0, "max": 0}, "lead": {"p50": 0, "max": 0}, "by_worker": {)",
      workers, R"(}, "bytes_pushed": )", static_cast<int64_t>(4 * steps * 40000), R"(, "bytes_pulled": )",
      static_cast<int64_t>(4 * steps * 40000),
      R"(, "weights_sha256": null, "checkpoint": "", "recoveries": 0, "lost_pushes": 0, "pushes_refused": 0)",
      more, R"(, "config": {"data": {"batch_size": 16}, "consistency": {"mode": ")", mode, R"("}}})");
}

double Gain(const Advice& advice, const std::string& flag) {
  for (const Advice::Change& change : advice.changes) {
    if (change.flag == flag) return change.gain;
  }
  return 1;
}

constexpr char kAsync[] = R"(--set 'consistency={"mode":"async"}')";
constexpr char kBounded[] = R"(--set 'consistency={"mode":"bounded","staleness":3}')";

TEST_CASE("a slow worker: async and a backup worker help, a bound does not") {
  const auto advice = Advise(Summary("sync", 4, 4.99), {});
  REQUIRE(advice.ok());
  CHECK(advice->slowest == Approx(4).epsilon(0.01));
  CHECK(advice->batch_seconds == Approx(0.05).epsilon(0.01));
  CHECK(advice->predicted == Approx(advice->measured).epsilon(0.02));
  CHECK(Gain(*advice, kAsync) == Approx(3.25).epsilon(0.05));
  CHECK(Gain(*advice, "--set consistency.backup_workers=1") == Approx(3).epsilon(0.05));
  CHECK(Gain(*advice, kBounded) == 1);
  CHECK(std::is_sorted(advice->changes.begin(), advice->changes.end(),
                       [](const auto& a, const auto& b) { return a.gain > b.gain; }));
  CHECK_THAT(AdviceText(*advice),
             Contains("the slowest worker takes 4.0 times as long") && Contains("accuracy"));
  CHECK_THAT(AdviceJson(*advice), Contains(R"("slowest_worker": 4)"));
}

TEST_CASE("batches of uneven length: the model is fitted to the speed, and a bound helps") {
  const auto advice = Advise(Summary("sync", 1, 12), {});
  REQUIRE(advice.ok());
  CHECK(advice->jitter > 0.2);
  CHECK(advice->predicted == Approx(advice->measured).epsilon(0.03));
  CHECK(Gain(*advice, kBounded) > 1.2);
  CHECK(Gain(*advice, kAsync) >= Gain(*advice, kBounded));
}

TEST_CASE("workers that always compute have nothing to gain") {
  const auto advice = Advise(Summary("async", 1, 19.9), {});
  REQUIRE(advice.ok());
  CHECK(advice->changes.empty());
  CHECK_THAT(AdviceText(*advice), Contains("nothing to gain"));
}

TEST_CASE("a summary without advice says why") {
  const auto error = [](const std::string& text) { return std::string(Advise(text, {}).status().message()); };
  CHECK_THAT(error("[]"), Contains("is not a JSON object"));
  CHECK_THAT(error("{}"), Contains("field /mode: is missing"));
  CHECK_THAT(error(Summary("sync", 1, 12, R"(, "failure": "a disk is full")")),
             Contains("the job failed (a disk is full)"));
  CHECK_THAT(error(Summary("sync", 1, 0)), Contains("trained nothing"));
  std::string none = Summary("sync", 1, 12);
  none.replace(none.find("by_worker"), 9, "of_others");
  CHECK_THAT(error(none), Contains("field by_worker has no utilization") && Contains("--batch_time"));
  CHECK(Advise(none, 0.05).ok());
}

TEST_CASE("quantities as people write them") {
  CHECK(*ParseBandwidth("10Gbit") == 1.25e9);
  CHECK(*ParseBandwidth("1.25GB") == 1.25e9);
  CHECK(*ParseBandwidth("0") == 0);
  CHECK(*ParseSeconds("50ms") == Approx(0.05));
  CHECK(*ParseSeconds("2min") == 120);
  for (const char* bad : {"", "10", "ms", "-1s", "1.2.3s", "5 s", "10gbit", "1e400s", "nan"}) {
    INFO(bad);
    CHECK_FALSE(ParseBandwidth(bad).ok());
    CHECK_FALSE(ParseSeconds(bad).ok());
  }
  CHECK(*ParseCounts("4..64", 1000) == std::vector<uint32_t>{4, 8, 16, 32, 64});
  CHECK(*ParseCounts("1,3,1000", 1000) == std::vector<uint32_t>{1, 3, 1000});
  for (const char* bad : {"", "0", "4,4", "8,4", "1001", "4..2", "..", "x", "1,"}) {
    INFO(bad);
    CHECK_FALSE(ParseCounts(bad, 1000).ok());
  }
  CHECK(ParseStraggler("4x")->share == 0);
  CHECK(ParseStraggler("4x:0.1")->share == 0.1);
  for (const char* bad : {"", "x", "4", "0.5x", "4x:", "4x:0", "4x:1.5", "2000x"}) {
    INFO(bad);
    CHECK_FALSE(ParseStraggler(bad).ok());
  }
}

TEST_CASE("the bytes of the types on the wire") {
  CHECK(WireBytes(v1::F32, 256) == 1024);
  CHECK(WireBytes(v1::BF16, 256) == 512);
  CHECK(WireBytes(v1::INT8, 256) == 260);
  CHECK(WireBytes(v1::INT4, 256) == 130);
  CHECK(WireBytes(v1::BIT1, 256) == 34);
  CHECK(WireBytes({v1::TOPK, 41}, 8192) == 328);
}

}  // namespace
}  // namespace weir
