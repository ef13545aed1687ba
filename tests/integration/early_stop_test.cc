// Jobs that stop when they no longer improve, and that keep their best weights.
#include <signal.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

const char* const kSync = R"({"mode": "sync", "parts": 2})";

// `other`: every label is the wrong one. With such a test set the test gets worse as training gets better.
std::string Csv(int lines, bool other = false) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += std::to_string(0.1 * (i % 7)) + "," + std::to_string(i % 2) + "," +
            std::to_string(other ? 1 - i % 2 : i % 2) + "\n";
  }
  return text;
}

// 64 examples an epoch, 8 batches, 4 steps of two parts.
struct Files {
  Files() {
    folder.Write("train.csv", Csv(64));
    folder.Write("test.csv", Csv(50, /*other=*/true));
    config = folder.Write("job.json", R"({
      "model": {"layers": [{"type": "dense", "units": 16}, {"type": "relu"}, {"type": "dense", "units": 2}]},
      "data": {"format": "csv", "train": {"path": "train.csv"}, "test": {"path": "test.csv"}, "batch_size": 8},
      "optimizer": {"learning_rate": 0.5}
    })");
  }
  TestJob::Options Options(const std::string& consistency, uint32_t ps, uint32_t workers,
                           const std::vector<std::string>& set) const {
    TestJob::Options options;
    options.ps = ps;
    options.workers = workers;
    options.config = config;
    options.set = With({"consistency=" + consistency}, set);
    return options;
  }
  nlohmann::json Run(const std::string& consistency, uint32_t ps, uint32_t workers,
                     const std::vector<std::string>& set) const {
    TestJob job(Options(consistency, ps, workers, set));
    job.StartAll();
    job.ExpectAllExit(0);
    return job.Summary();
  }
  TestFolder folder;
  std::string config;
};

TEST_CASE("early stop: sync, after the same step with the same bits, for any number of servers and workers") {
  const Files files;
  const std::vector<std::string> stop = {"train.epochs=20", "evaluation.patience=2"};
  const nlohmann::json first = files.Run(kSync, 1, 1, stop);
  INFO(first.dump(2));
  CHECK(first.at("steps") == 12);
  CHECK(first.at("examples") == 3 * 64);
  CHECK(first.at("evaluations").size() == 3);
  CHECK(first.at("best").is_null());
  CHECK_THAT(first.at("stopped_early").get<std::string>(),
             Contains("after epoch 3, since 2 evaluations were no better than that of epoch 1"));
  for (const auto& [ps, workers] : {std::pair(2, 3), std::pair(3, 2)}) {
    const nlohmann::json other = files.Run(kSync, ps, workers, stop);
    CHECK(other.at("weights_sha256") == first.at("weights_sha256"));
    CHECK(other.at("evaluations") == first.at("evaluations"));
  }
  // A job of that length from the start gives the same.
  const nlohmann::json shorter = files.Run(kSync, 1, 2, {"train.epochs=3"});
  CHECK(shorter.at("weights_sha256") == first.at("weights_sha256"));
  CHECK(shorter.at("stopped_early").is_null());
}

TEST_CASE("early stop: bounded, async, with the last batch of an epoch") {
  const Files files;
  const nlohmann::json summary =
      files.Run(GENERATE(R"({"mode": "bounded", "staleness": 1})", R"({"mode": "async"})"), 2, 3,
                {"train.epochs=20", "evaluation.patience=1", "evaluation.min_delta=1000"});
  INFO(summary.dump(2));
  // Each push was applied, and no other was made.
  CHECK(summary.at("pushes") == 16);
  CHECK(summary.at("examples") == 128);
  CHECK(summary.at("lost_pushes") == 0);
  CHECK(summary.at("evaluations").size() == 2);
  CHECK_THAT(summary.at("stopped_early").get<std::string>(), Contains("after epoch 2"));
  // The epoch's result is of the same weights as the next evaluation at that moment, the final one.
  CHECK(summary.at("evaluations")[1].at("test_loss") == summary.at("test_loss"));
}

TEST_CASE("early stop: the worker that evaluates is killed, another one decides") {
  const Files files;
  TestJob job(files.Options(kSync, 2, 2,
                            {"train.epochs=200", "evaluation.patience=1", "evaluation.min_delta=1000",
                             "evaluation.every_epochs=50"}));
  job.StartAll();
  job.WaitForStatus("step 100", [](const v1::ClusterStatus& status) { return status.step() >= 100; });
  job["worker:1"].Signal(SIGKILL);
  job.ExpectExit("worker:1", 128 + SIGKILL);
  for (const char* task : {"worker:0", "ps:0", "ps:1"}) job.ExpectExit(task, 0);
  const nlohmann::json summary = job.Summary();
  CHECK(summary.at("steps") == 400);
  CHECK_THAT(summary.at("stopped_early").get<std::string>(), Contains("after epoch 100"));
}

TEST_CASE("keep_best: its checkpoint stays beside the last one, and holds the weights of that epoch") {
  const Files files;
  const std::string runs = files.folder.path("runs");
  const nlohmann::json summary =
      files.Run(kSync, 2, 2,
                {"train.epochs=5", "evaluation.keep_best=true", "checkpoint.directory=" + runs,
                 "checkpoint.keep=1", "checkpoint.every_steps=3"});
  INFO(summary.dump(2));
  CHECK(summary.at("steps") == 20);
  CHECK(summary.at("stopped_early").is_null());
  CHECK(summary.at("best").at("epoch") == 1);
  CHECK(summary.at("best").at("step") == 4);
  CHECK(summary.at("best").at("test_loss") == summary.at("evaluations")[0].at("test_loss"));
  CHECK(summary.at("best").at("checkpoint") == runs + "/step-00000004");
  const auto left = FindCheckpoints(FileSystem::Posix(), runs);
  REQUIRE(left.ok());
  REQUIRE(left->size() == 2);
  CHECK((*left)[0].step == 4);
  CHECK((*left)[1].step == 20);
  // The weights equal those of a job of one epoch.
  const std::string best = files.folder.path("best.safetensors"), one = files.folder.path("one.safetensors");
  const std::string short_runs = files.folder.path("short");
  files.Run(kSync, 1, 1, {"train.epochs=1", "checkpoint.directory=" + short_runs});
  for (const auto& [from, to] : {std::pair(runs + "/best", best), std::pair(short_runs, one)}) {
    const auto found = ResolveCheckpoint(FileSystem::Posix(), from);
    REQUIRE(found.status() == absl::OkStatus());
    const auto reader = CheckpointReader::Open(FileSystem::Posix(), found->folder);
    REQUIRE(reader.status() == absl::OkStatus());
    REQUIRE(reader->Export(to).status() == absl::OkStatus());
  }
  const auto weights = [](const std::string& file) {
    const std::string bytes = ReadWholeFile(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    return bytes.substr(8 + header);
  };
  CHECK(weights(best) == weights(one));
  // A new job begins with them.
  const nlohmann::json next =
      files.Run(kSync, 2, 1, {"train.epochs=1", "checkpoint.init_from=" + runs + "/best"});
  CHECK(next.at("examples") == 64);
  CHECK(next.at("train_loss") < summary.at("evaluations")[0].at("test_loss"));
}

TEST_CASE(
    "early stop: a job that was stopped is done when it is started again; with more patience it goes on") {
  const Files files;
  const std::string runs = files.folder.path("runs");
  const std::string mode = GENERATE(std::string(kSync), std::string(R"({"mode": "async"})"));
  const auto run = [&](int patience) {
    return files.Run(mode, 2, 2,
                     {"train.epochs=6", "evaluation.patience=" + std::to_string(patience),
                      "evaluation.min_delta=1000", "checkpoint.directory=" + runs});
  };
  const nlohmann::json first = run(2);
  CHECK(first.at("examples") == 3 * 64);
  const nlohmann::json again = run(2);
  INFO(again.dump(2));
  CHECK(again.at("bytes_pushed") == 0);
  CHECK(again.at("steps") == first.at("steps"));
  CHECK(again.at("stopped_early") == first.at("stopped_early"));
  const nlohmann::json more = run(4);
  INFO(more.dump(2));
  CHECK(more.at("examples") == 5 * 64);
  CHECK(more.at("evaluations").size() == 5);
}

}  // namespace
}  // namespace weir
