// The evaluations of epochs and of the job's end, and what happens to them when the evaluating worker dies.
#include <signal.h>

#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
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
  explicit Files(int test_examples = 8000) {
    folder.Write("train.csv", Csv(64));
    folder.Write("test.csv", Csv(test_examples));
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
  CHECK(summary["tables_sha256"].is_null());
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
             Contains("all 128 examples are done, but no worker has evaluated the weights: no worker"));
  const nlohmann::json summary = job.Summary();
  for (const char* field : {"test_loss", "test_accuracy", "weights_sha256"}) {
    INFO(field);
    CHECK(summary.at(field).is_null());
  }
}

// ---- epochs

// A small job of 4 steps an epoch in sync.
nlohmann::json RunEpochs(const std::string& consistency, uint32_t ps, uint32_t workers, int epochs,
                         bool evaluator = false) {
  TestFolder folder;
  folder.Write("train.csv", Csv(64));
  folder.Write("test.csv", Csv(50));
  TestJob::Options options;
  options.ps = ps;
  options.workers = workers;
  options.evaluator = evaluator;
  options.config = folder.Write("job.json", R"({
      "model": {"layers": [{"type": "dense", "units": 16}, {"type": "relu"}, {"type": "dense", "units": 2}]},
      "data": {"format": "csv", "train": {"path": "train.csv"}, "test": {"path": "test.csv"}, "batch_size": 8},
      "optimizer": {"learning_rate": 0.5}
    })");
  options.set = {"consistency=" + consistency, "train.epochs=" + std::to_string(epochs)};
  TestJob job(options);
  job.StartAll();
  job.ExpectAllExit(0);
  const nlohmann::json summary = job.Summary();
  INFO(summary.dump(2));
  const nlohmann::json& entries = summary.at("evaluations");
  REQUIRE(entries.size() == static_cast<size_t>(epochs));
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    CHECK(entries[epoch - 1].at("epoch") == epoch);
    CHECK(entries[epoch - 1].at("test_loss").is_number());
    CHECK(entries[epoch - 1].at("test_accuracy") >= 0);
  }
  CHECK(entries.back().at("step") == summary.at("steps"));
  for (const char* field : {"test_loss", "test_accuracy"})
    CHECK(entries.back().at(field) == summary.at(field));
  return summary;
}

TEST_CASE("each epoch is evaluated: sync, the very weights of its end, whoever does it") {
  const std::string sync = R"({"mode": "sync", "parts": 2})";
  const nlohmann::json entries = RunEpochs(sync, 2, 2, 3).at("evaluations");
  for (int epoch = 1; epoch <= 3; ++epoch) CHECK(entries[epoch - 1].at("step") == 4 * epoch);
  CHECK(RunEpochs(sync, 1, 3, 3).at("evaluations") == entries);
  CHECK(RunEpochs(sync, 1, 1, 3, /*evaluator=*/true).at("evaluations") == entries);
  // Jobs that end at epochs' ends of the long job.
  for (int epochs = 1; epochs <= 2; ++epochs) {
    const nlohmann::json shorter = RunEpochs(sync, 1, 1, epochs);
    CHECK(shorter.at("test_loss") == entries[epochs - 1].at("test_loss"));
  }
}

TEST_CASE("each epoch is evaluated: bounded, async") {
  const nlohmann::json entries =
      RunEpochs(GENERATE(R"({"mode": "bounded", "staleness": 2})", R"({"mode": "async"})"), 2, 2, 4)
          .at("evaluations");
  for (int epoch = 1; epoch < 4; ++epoch) {
    // Two workers may have pushed a part of the step already that their sum does not reach.
    CHECK(entries[epoch - 1].at("step").get<int>() + 1 >= 4 * epoch);
    CHECK(entries[epoch].at("step") >= entries[epoch - 1].at("step"));
  }
}

TEST_CASE("the worker is killed that evaluates an epoch: that one has no result, and the job goes on") {
  const Files files;
  TestJob job({.config = files.config, .set = {R"(consistency={"mode": "sync", "parts": 2})"}});
  job.StartAll();
  // The weights of step 4 were read, and their evaluation takes seconds.
  job.WaitForStatus("step 5", [](const v1::ClusterStatus& status) { return status.step() >= 5; });
  job["worker:1"].Signal(SIGKILL);
  job.ExpectExit("worker:1", 128 + SIGKILL);
  for (const char* task : {"worker:0", "ps:0", "ps:1"}) job.ExpectExit(task, 0);
  const nlohmann::json summary = job.Summary();
  CheckEvaluated(summary);
  const nlohmann::json& entries = summary.at("evaluations");
  REQUIRE(entries.size() == 2);
  CHECK(entries[0] ==
        nlohmann::json::parse(R"({"epoch": 1, "step": null, "test_loss": null, "test_accuracy": null,
                                                "test_auc": null, "validation": false})"));
  CHECK(entries[1].at("step") == 8);
  CHECK(entries[1].at("test_loss") == summary.at("test_loss"));
}

TEST_CASE("a worker whose training fails while it evaluates an epoch says so without finishing that") {
  const Files files(/*test_examples=*/100000);
  // Each update makes the weights a tenth larger. The evaluation begins at step 32, and step 64 would wait
  // for it; that training diverges is found at step 55.
  TestJob job({.workers = 1,
               .config = files.config,
               .set = {"consistency.mode=sync", "optimizer.type=sgd", "optimizer.learning_rate=2.1",
                       "optimizer.weight_decay=1", "train.clip_norm=0.001", "train.divergence=10",
                       "train.epochs=20", "evaluation.every_epochs=4"}});
  job.StartAll();
  job.ExpectAllExit(kExitInternal);
  CHECK_THAT(job["worker:0"].log(),
             Contains(": the mean loss of the last 50 batches is ") && Contains(" at clock 54"));
  CHECK(job.Summary().at("evaluations").empty());
}

}  // namespace
}  // namespace weir
