// What becomes of a job's result when the worker dies that evaluates the weights at the end.
#include <signal.h>

#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

std::string Csv(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += std::to_string(0.1 * (i % 7)) + "," + std::to_string(i % 2) + "," + std::to_string(i % 2) + "\n";
  }
  return text;
}

// A job whose training is short and whose evaluation takes seconds.
struct Files {
  Files() {
    folder.Write("train.csv", Csv(64));
    folder.Write("test.csv", Csv(8000));
    config = folder.Write("job.json", R"({
      "model": {"layers": [{"type": "dense", "units": 1024}, {"type": "relu"}, {"type": "dense", "units": 1024},
                           {"type": "relu"}, {"type": "dense", "units": 2}]},
      "data": {"format": "csv", "train": {"path": "train.csv"}, "test": {"path": "test.csv"}, "batch_size": 8},
      "train": {"epochs": 2}
    })");
  }
  TestFolder folder;
  std::string config;
};

void CheckEvaluated(const nlohmann::json& summary) {
  INFO(summary.dump(2));
  CHECK(summary["examples"] == 128);
  CHECK(summary["test_loss"].is_number());
  CHECK(summary["test_accuracy"] >= 0);
  REQUIRE(summary["weights_sha256"].is_string());
  CHECK(summary["weights_sha256"].get<std::string>().size() == 64);
}

void KillTheLeadingOne(const std::string& mode) {
  const Files files;
  TestJob job({.config = files.config, .set = {"consistency=" + mode}});
  job.StartAll();
  job["ps:0"].WaitForLog("all 128 examples are done");
  job["worker:0"].Signal(SIGKILL);
  job.ExpectExit("worker:0", 128 + SIGKILL);
  for (const char* task : {"worker:1", "ps:0", "ps:1"}) job.ExpectExit(task, 0);
  CHECK_THAT(job["worker:1"].log(), Contains("final evaluation at version "));
  CheckEvaluated(job.Summary());
}

TEST_CASE("the worker is killed that evaluates the weights: another one does: sync") {
  KillTheLeadingOne(R"({"mode": "sync"})");
}
TEST_CASE("the worker is killed that evaluates the weights: another one does: bounded") {
  KillTheLeadingOne(R"({"mode": "bounded", "staleness": 2})");
}
TEST_CASE("the worker is killed that evaluates the weights: another one does: async") {
  KillTheLeadingOne(R"({"mode": "async"})");
}

TEST_CASE("the only worker is killed while it evaluates, and does so when it is started again") {
  const Files files;
  TestJob job({.workers = 1, .config = files.config, .set = {"consistency.mode=async"}});
  job.StartAll();
  job["ps:0"].WaitForLog("all 128 examples are done");
  job["worker:0"].Signal(SIGKILL);
  job.ExpectExit("worker:0", 128 + SIGKILL);
  job.Start("worker:0");
  job.ExpectAllExit(0);
  CheckEvaluated(job.Summary());
}

TEST_CASE("the only worker is killed while it evaluates: without a result nothing ends well") {
  const Files files;
  TestJob job(
      {.workers = 1, .config = files.config, .set = {"consistency.mode=sync", "cluster.start_seconds=10"}});
  job.StartAll();
  job["ps:0"].WaitForLog("all 128 examples are done");
  job["worker:0"].Signal(SIGKILL);
  for (const char* task : {"ps:0", "ps:1"}) job.ExpectExit(task, 138);
  CHECK_THAT(job["ps:0"].log(),
             Contains("all 128 examples are done, but nobody has evaluated the weights: no worker"));
  const nlohmann::json summary = job.Summary();
  for (const char* field : {"test_loss", "test_accuracy", "weights_sha256"}) {
    INFO(field);
    CHECK(summary.at(field).is_null());
  }
}

}  // namespace
}  // namespace weir
