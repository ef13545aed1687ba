#include "cli/report/summary.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;

const char* const kJson =
    R"({"mode": "sync", "staleness_bound": null, "parts": 4, "ps": 1, "workers": 4, "steps": 470,
  "pushes": 1880, "examples": 60160, "wall_seconds": 4.21, "examples_per_second": 14289.8, "train_loss": 0.0123,
  "test_accuracy": 0.9832, "test_loss": 0.0712, "version_staleness": {"p50": 1, "p99": 7, "max": 9},
  "lead": {"p50": 1, "max": 2}, "bytes_pushed": 33100000, "bytes_pulled": 40200000, "weights_sha256": "ab12",
  "checkpoint": "", "recoveries": 0, "lost_pushes": 0, "pushes_refused": 0, "of_a_later_version": [1]})";

TEST_CASE("the server's summary is read, and given on with what only the command knows") {
  auto summary = ParseSummary(kJson);
  REQUIRE(summary.ok());
  summary->total_seconds = 5.5;
  summary->exit_codes = {{"ps:0", 0}, {"worker:1", 137}};
  CHECK(SummaryText("digits", *summary) ==
        "digits: sync, 4 parts a step, 1 server, 4 workers\n"
        "  test accuracy     98.32%\n"
        "  test loss         0.0712\n"
        "  train loss        0.0123\n"
        "  steps             470 (1,880 pushes, 60,160 examples)\n"
        "  time              4.21 s of training at 14.3k examples/s; 5.50 s in all\n"
        "  version staleness p50 1, p99 7, max 9\n"
        "  lead              p50 1, max 2 clocks\n"
        "  traffic           33.1 MB pushed, 40.2 MB pulled\n"
        "  weights           sha256 ab12\n");
  const std::string json = SummaryJson(*summary);
  CHECK_THAT(json, Contains("\"of_a_later_version\": [") && Contains("\"total_seconds\": 5.5") &&
                       Contains("\"worker:1\": 137") && Contains("\"wall_seconds\": 4.21"));
  CHECK(ParseSummary(json).ok());
}

TEST_CASE("a job with embedding tables tells of their rows") {
  const auto with = [](const std::string& digest) {
    return ParseSummary(absl::StrReplaceAll(
        kJson, {{"\"checkpoint\"", "\"tables_sha256\": " + digest + ", \"checkpoint\""}}));
  };
  const auto known = with("\"cd34\""), none = with("null");
  REQUIRE(known.ok());
  REQUIRE(none.ok());
  CHECK_THAT(SummaryText("x", *known), Contains("  tables            sha256 cd34\n"));
  CHECK_THAT(SummaryText("x", *none), !Contains("tables"));
  CHECK(!with("17").ok());
}

TEST_CASE("what a job went through, and where it saved itself") {
  auto summary = ParseSummary(absl::StrReplaceAll(
      kJson, {{"\"checkpoint\": \"\"", "\"checkpoint\": \"/runs/7/step-00000470\""},
              {"\"recoveries\": 0, \"lost_pushes\": 0", "\"recoveries\": 3, \"lost_pushes\": 1700"}}));
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary),
             Contains("  faults            3 servers came back; 1,700 pushes lost\n"
                      "  checkpoint        /runs/7/step-00000470\n"));
  summary->pushes_refused = 12;
  CHECK_THAT(SummaryText("x", *summary), Contains("(1,880 pushes, 12 refused, 60,160 examples)\n"));
  summary->lost_pushes = 0;
  summary->recoveries = 1;
  summary->restarts = {{"ps:1", 1}, {"worker:0", 2}};
  CHECK_THAT(SummaryText("x", *summary),
             Contains("  faults            1 server came back; started again: ps:1, worker:0 (2 times)\n"));
  CHECK_THAT(SummaryJson(*summary), Contains("\"worker:0\": 2"));
  summary->recoveries = 0;
  CHECK_THAT(SummaryText("x", *summary),
             Contains("  faults            started again: ps:1, worker:0 (2 times)\n"));
  summary->bytes_pushed = summary->bytes_pulled = 0;
  CHECK(SummaryText("x", *summary) ==
        "x: sync, 4 parts a step, 1 server, 4 workers\n"
        "  steps             470, all done before: nothing was left to do\n"
        "  checkpoint        /runs/7/step-00000470\n");
}

TEST_CASE("what is not known is absent: no number, no hash") {
  std::string json = absl::StrReplaceAll(kJson, {{"0.0123", "null"}, {"0.9832", "null"}, {"0.0712", "null"}});
  auto summary = ParseSummary(json);
  REQUIRE(summary.ok());
  CHECK(!summary->train_loss.has_value());
  CHECK(!summary->test_accuracy.has_value());
  CHECK(!summary->test_loss.has_value());
  // The job has no test data.
  CHECK_THAT(SummaryText("x", *summary), Contains("train loss        not known\n") && !Contains("test"));
  const size_t hash = json.find("\"weights_sha256\": \"") + sizeof("\"weights_sha256\": ") - 1;
  json.replace(hash, json.find('"', hash + 1) + 1 - hash, "null");
  summary = ParseSummary(json);
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary),
             Contains("  test              not evaluated\n") &&
                 Contains("  weights           no worker read them at the end\n"));
  // Tested, by a client that does not hash the weights.
  summary->test_accuracy = 0.9;
  CHECK_THAT(SummaryText("x", *summary), Contains("test accuracy     90.00%") && !Contains("not evaluated"));
  summary->test_accuracy.reset();
  CHECK_THAT(SummaryJson(*summary), Contains("\"weights_sha256\": null") && Contains("\"test_loss\": null"));
}

TEST_CASE("epochs, of which the newest are shown") {
  const auto with = [](const std::string& evaluations) {
    return ParseSummary(absl::StrReplaceAll(
        kJson,
        {{"\"bytes_pushed\"", absl::StrCat("\"evaluations\": [", evaluations, "], \"bytes_pushed\"")}}));
  };
  auto summary = with(R"({"epoch": 1, "step": 47, "test_loss": 0.5, "test_accuracy": 0.75},)"
                      R"({"epoch": 2, "step": null, "test_loss": null, "test_accuracy": null},)"
                      R"({"epoch": 3, "step": 141, "test_loss": null, "test_accuracy": null})");
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary), Contains("  test loss         0.0712\n"
                                                  "  epochs            1: test loss 0.5000, accuracy 75.00%\n"
                                                  "                    2: not evaluated\n"
                                                  "                    3: test loss not finite\n"
                                                  "  train loss"));
  std::string many;
  for (int epoch = 1; epoch <= 12; ++epoch) {
    absl::StrAppend(&many, epoch > 1 ? "," : "", R"({"epoch": )", epoch,
                    R"(, "step": 47, "test_loss": 0.5, "test_accuracy": 0.75})");
  }
  summary = with(many);
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary), Contains("  epochs            2 earlier ones: see --summary=FILE\n"
                                                  "                    3: test loss") &&
                                             Contains("\n                    12: test loss"));
  CHECK_THAT(std::string(with(R"({"step": 1})").status().message()), Contains("/evaluations/0/epoch"));
}

TEST_CASE("the best epoch, and why a job was stopped") {
  const auto with = [](const std::string& more) {
    return ParseSummary(absl::StrReplaceAll(kJson, {{"\"bytes_pushed\"", more + ", \"bytes_pushed\""}}));
  };
  auto summary = with(
      R"("best": {"epoch": 2, "step": 94, "test_loss": 0.25, "test_accuracy": 0.75, "checkpoint": "/r/step-94"},
         "stopped_early": "after epoch 5, since so and so")");
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary), Contains("  stopped early     after epoch 5, since so and so\n"
                                                  "  best epoch        2: test loss 0.2500, accuracy 75.00%\n"
                                                  "                    /r/step-94\n"));
  summary = with(R"("best": null, "stopped_early": null)");
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary), !Contains("best") && !Contains("stopped"));
  CHECK_THAT(std::string(with(R"("best": {"epoch": 2})").status().message()), Contains("/best/checkpoint"));
}

TEST_CASE("what the program has logged") {
  const auto with = [](const std::string& metrics) {
    return ParseSummary(absl::StrReplaceAll(
        kJson, {{"\"bytes_pushed\"", absl::StrCat("\"metrics\": ", metrics, ", \"bytes_pushed\"")}}));
  };
  const auto summary = with(R"({"lr": 0.001, "val/auc": 0.71234567})");
  REQUIRE(summary.ok());
  CHECK_THAT(SummaryText("x", *summary), Contains("  logged            lr 0.001\n"
                                                  "                    val/auc 0.712346\n"
                                                  "  train loss"));
  CHECK_THAT(SummaryText("x", *with("{}")), !Contains("logged"));
  CHECK(with(R"({"lr": "high"})").status().message() == R"(field /metrics: is {"lr":"high"})");
}

TEST_CASE("a loss without an accuracy") {
  const auto summary = ParseSummary(absl::StrReplaceAll(kJson, {{"0.9832", "null"}}));
  REQUIRE(summary.ok());
  CHECK(!summary->test_accuracy.has_value());
  CHECK_THAT(SummaryText("x", *summary), Contains("test loss") && !Contains("accuracy"));
}

TEST_CASE("what is no summary") {
  const auto error = [](const std::string& text) {
    return std::string(ParseSummary(text).status().message());
  };
  CHECK_THAT(error(""), Contains("not a JSON object"));
  CHECK_THAT(error("[]"), Contains("not a JSON object"));
  CHECK_THAT(error("{}"), Contains("/mode") && Contains("missing"));
  CHECK_THAT(error(absl::StrReplaceAll(kJson, {{"weights_sha256", "sha256"}})),
             Contains("/weights_sha256") && Contains("missing"));
  CHECK_THAT(error(absl::StrReplaceAll(kJson, {{"470", "-1"}})), Contains("/steps") && Contains("-1"));
  CHECK_THAT(error(absl::StrReplaceAll(kJson, {{"\"p99\": 7", "\"p99\": \"7\""}})),
             Contains("/version_staleness/p99"));
  CHECK_THAT(error(absl::StrReplaceAll(kJson, {{"\"ps\": 1", "\"ps\": 4294967296"}})), Contains("/ps"));
}

TEST_CASE("files") {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/summary.json";
  const auto content = [&] {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  REQUIRE(WriteFileWhole(path, "one").ok());
  REQUIRE(WriteFileWhole(path, "two").ok());
  CHECK(content() == "two");
  REQUIRE(PrepareFile(path).ok());
  struct stat there;
  CHECK(stat(path.c_str(), &there) != 0);
  CHECK_THAT(std::string(PrepareFile("/no/such/folder/x").message()), Contains("/no/such/folder/x"));
  // A device stays what it is.
  CHECK(PrepareFile("/dev/null").ok());
  CHECK(WriteFileWhole("/dev/null", "x").ok());
  REQUIRE(stat("/dev/null", &there) == 0);
  CHECK(S_ISCHR(there.st_mode));
}

}  // namespace
}  // namespace weir
