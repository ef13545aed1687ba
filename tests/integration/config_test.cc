// The configs that come with Weir, run as processes of a cluster: they hold what the README promises.
#include <chrono>

#include "catch2/catch.hpp"
#include "tests/integration/processes.h"

namespace weir {
namespace {

void TrainDigits(const std::string& mode, const std::vector<std::string>& set) {
  TestJob job({.config = "configs/digits.json", .set = set});
  const auto started = std::chrono::steady_clock::now();
  job.StartAll();
  job.ExpectAllExit(0);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  const nlohmann::json summary = job.Summary();
  CheckSummary(summary, mode, 2, 2, 30 * 1500);
  CHECK(summary["test_accuracy"] >= 0.97);
#if !defined(WEIR_ASAN) && !defined(WEIR_TSAN)
  CHECK(seconds.count() < 15);
#endif
}

TEST_CASE("configs/digits.json trains in sync") { TrainDigits("sync", {}); }
TEST_CASE("configs/digits.json trains in bounded") {
  TrainDigits("bounded", {R"(consistency={"mode": "bounded", "staleness": 3})"});
}
TEST_CASE("configs/digits.json trains in async") {
  TrainDigits("async", {R"(consistency={"mode": "async"})"});
}

// 10 steps a push, so a tenth of the bytes of digits.json.
void TrainDigitsLocally(const std::string& mode, const std::vector<std::string>& set) {
  TestJob job({.config = "configs/digits_local.json", .set = set});
  job.StartAll();
  job.ExpectAllExit(0);
  const nlohmann::json summary = job.Summary();
  CheckSummary(summary, mode, 2, 2, 30 * 1500);
  CHECK(summary["pushes"] == (30 * 1500 + 159) / 160);
  CHECK(summary["config"]["local"]["steps"] == 10);
  CHECK(summary["test_accuracy"] >= 0.96);
}

TEST_CASE("configs/digits_local.json trains in sync") { TrainDigitsLocally("sync", {}); }
TEST_CASE(
    "configs/digits_local.json trains in bounded and async, with an outer rule for pushes that come alone") {
  const std::string outer = R"(optimizer={"type": "sgd", "learning_rate": 0.5})";
  TrainDigitsLocally("bounded", {outer, R"(consistency={"mode": "bounded", "staleness": 1})"});
  TrainDigitsLocally("bounded",
                     {outer, R"(consistency={"mode": "bounded", "staleness": 1, "prefetch": true})"});
  TrainDigitsLocally("async", {outer, R"(consistency={"mode": "async"})"});
}

TEST_CASE("configs/cluster_2ps_2workers.json is a cluster of two servers and two workers") {
  // Its ports are fixed, so the cluster is not started here; each task finds itself in the file.
  for (const char* task : {"ps:0", "ps:1"}) {
    const RunResult run =
        RunToEnd({"worker/worker", "--config=configs/digits.json",
                  "--cluster=configs/cluster_2ps_2workers.json", std::string("--task=") + task});
    CHECK(run.status == 78);
    CHECK_THAT(run.output, Catch::Contains(std::string("the task is ") + task));
  }
  for (const char* task : {"worker:0", "worker:1"}) {
    const RunResult run =
        RunToEnd({"ps_server/ps_server", "--config=configs/digits.json",
                  "--cluster=configs/cluster_2ps_2workers.json", std::string("--task=") + task});
    CHECK(run.status == 78);
    CHECK_THAT(run.output, Catch::Contains(std::string("the task is ") + task));
  }
}

}  // namespace
}  // namespace weir
