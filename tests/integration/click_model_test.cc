// Jobs with embedding tables, as processes: the click model on a click log whose best AUC and log loss are
// known, in each mode, and the factorization machine on a file of MovieLens's format. In sync the weights
// have the same bits however many workers and servers there are.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

#if defined(WEIR_ASAN) || defined(WEIR_TSAN)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

// What `weir data clicks` has written, and says about it.
struct ClickLog {
  TestFolder folder;
  double log_loss = 0, constant_log_loss = 0, auc = 0;

  ClickLog(int rows, int test_rows) {
    const RunResult run =
        RunToEnd({"cli/weir", "data", "clicks", folder.path("clicks"), absl::StrCat("--rows=", rows),
                  absl::StrCat("--test_rows=", test_rows), "--users=200", "--items=100"});
    REQUIRE(run.status == 0);
    log_loss = Number(run.output, "on test.csv: log loss ");
    auc = Number(run.output, "AUC ");
    constant_log_loss = Number(run.output, "for everybody: log loss ");
  }
  std::vector<std::string> Set(const std::vector<std::string>& more) const {
    return With({absl::StrCat("data.train.path=", folder.path("clicks/train.csv")),
                 absl::StrCat("data.test.path=", folder.path("clicks/test.csv"))},
                more);
  }
  static double Number(const std::string& text, const std::string& before) {
    const size_t at = text.find(before);
    REQUIRE(at != std::string::npos);
    return std::strtod(text.c_str() + at + before.size(), nullptr);
  }
};

nlohmann::json Train(const ClickLog& log, const std::vector<std::string>& set, uint32_t ps,
                     uint32_t workers) {
  TestJob job({.ps = ps, .workers = workers, .config = "configs/ctr_dcn.json", .set = log.Set(set)});
  job.StartAll();
  job.ExpectAllExit(0);
  return job.Summary();
}

TEST_CASE("configs/ctr_dcn.json comes close to what is reachable, in every mode") {
  const ClickLog log(kSlow ? 2000 : 60000, 4000);
  REQUIRE(log.auc > 0.75);
  for (const std::string mode :
       {R"({"mode": "sync", "parts": 2})", R"({"mode": "bounded", "staleness": 2})",
        R"({"mode": "bounded", "staleness": 1, "prefetch": true})", R"({"mode": "async"})"}) {
    CAPTURE(mode);
    const nlohmann::json summary = Train(log, {"consistency=" + mode, "data.batch_size=64"}, 2, 2);
    INFO(summary.dump());
    REQUIRE(summary["test_auc"].is_number());
    CHECK(summary["evaluations"].size() == 3);
    CHECK(summary["evaluations"][0]["test_auc"].is_number());
    if (kSlow) continue;
    CHECK(summary["test_auc"] > log.auc - 0.03);
    CHECK(summary["test_loss"] < log.log_loss + 0.2 * (log.constant_log_loss - log.log_loss));
  }
}

TEST_CASE("In sync a model with tables has the same bits with any number of workers and servers") {
  const ClickLog log(kSlow ? 600 : 3000, 500);
  std::string weights, tables;
  double loss = 0;
  for (const auto& [ps, workers] : {std::pair(1u, 1u), std::pair(2u, 2u), std::pair(3u, 4u)}) {
    CAPTURE(ps, workers);
    const nlohmann::json summary = Train(
        log, {R"(consistency={"mode": "sync", "parts": 4})", "train.epochs=1", "server.min_shard_kib=0"}, ps,
        workers);
    if (weights.empty()) {
      weights = summary["weights_sha256"];
      tables = summary["tables_sha256"];
      loss = summary["test_loss"];
    }
    CHECK(summary["weights_sha256"] == weights);
    CHECK(summary["tables_sha256"] == tables);
    // Of the rows, too.
    CHECK(summary["test_loss"] == loss);
  }
  CHECK(weights.size() == 64);
  CHECK(tables.size() == 64);
}

TEST_CASE("configs/movielens_fm.json trains on files of MovieLens's format") {
  const TestFolder folder;
  // Ratings from 1 to 5 that users and films of two kinds decide, as ml-100k/ua.base has them.
  RandomStream random(1, 0);
  std::string files[2];
  double squares[2] = {0, 0};
  for (int i = 0; i < 8000; ++i) {
    const uint32_t user = 1 + random.NextBelow(60), film = 1 + random.NextBelow(90);
    const double taste = (user % 2 == film % 2 ? 1.2 : -1.2) + 0.2 * (film % 5) - 0.4;
    const int rating = std::min(
        5, std::max(1, static_cast<int>(std::lround(3 + taste + UniformFloat(random.Next()) - 0.5))));
    absl::StrAppendFormat(&files[i % 4 == 0], "%d\t%d\t%d\t%d\n", user, film, rating, 874965758 + i);
    squares[i % 4 == 0] += (rating - 3.0) * (rating - 3.0);
  }
  TestJob job({.config = "configs/movielens_fm.json",
               .set = {"data.train.path=" + folder.Write("ua.base", files[0]),
                       "data.test.path=" + folder.Write("ua.test", files[1]),
                       kSlow ? "train.epochs=2" : "train.epochs=30"}});
  job.StartAll();
  job.ExpectAllExit(0);
  const nlohmann::json summary = job.Summary();
  INFO(summary.dump());
  CHECK(summary["test_auc"].is_null());
  CHECK(summary["test_accuracy"].is_null());
  // Against a model that says 3 to everything.
  if (!kSlow) CHECK(summary["test_loss"] < 0.25 * squares[1] / 2000);
}

TEST_CASE("A click log is the same each time, and its rows follow each other") {
  const TestFolder folder;
  const auto write = [&](const std::string& name, const std::vector<std::string>& flags) {
    const RunResult run = RunToEnd(With({"cli/weir", "data", "clicks", folder.path(name)}, flags));
    REQUIRE(run.status == 0);
    return std::pair(ReadWholeFile(folder.path(name + "/train.csv")),
                     ReadWholeFile(folder.path(name + "/test.csv")));
  };
  const auto [train, test] = write("a", {"--rows=300", "--test_rows=100"});
  CHECK(train.rfind("click,user,item,place,tags,age\n", 0) == 0);
  CHECK(write("b", {"--rows=300", "--test_rows=100"}) == std::pair(train, test));
  CHECK(write("c", {"--rows=300", "--test_rows=100", "--seed=2"}).first != train);
  const auto all = write("d", {"--rows=400", "--test_rows=1"});
  CHECK(all.first == train + test.substr(test.find('\n') + 1));
  const RunResult bad = RunToEnd({"cli/weir", "data", "clicks", folder.Write("file", ""), "--rows=10"});
  CHECK(bad.status == 78);
  CHECK_THAT(bad.output, Catch::Contains("cannot make the folder"));
}

}  // namespace
}  // namespace weir
