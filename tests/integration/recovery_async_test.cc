// Bounded and async jobs whose servers are killed and come back: they end by themselves with all their
// examples done, and a restored server declares the pushes that it lost.
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/integration/recovery_run.h"

namespace weir {
namespace {

using Catch::Contains;

constexpr uint64_t kExamples = 3 * 1500;

// No checkpoint is taken by itself.
RecoveryRun::Options Options(const std::string& mode, std::vector<std::string> more = {}) {
  RecoveryRun::Options options;
  options.set = {"consistency.mode=" + mode, "train.epochs=3", "debug.worker_delay=0.04",
                 "checkpoint.every_steps=100000"};
  if (mode == "bounded") options.set.push_back("consistency.staleness=2");
  options.set = With(std::move(options.set), more);
  return options;
}

// Kills the task 15 steps after a checkpoint, starts it again, and returns the summary.
nlohmann::json KillOnce(RecoveryRun& run, const std::string& task) {
  run.WaitForStep(10);
  const auto saved = run.TakeCheckpoint();
  run.WaitForStep(saved.step() + 15);
  run.Kill(task);
  run.Restart(task);
  return run.WaitForEnd();
}

std::string Modes() { return GENERATE(as<std::string>(), "async", "bounded"); }

TEST_CASE("ps:1 is killed and comes back: what it lost is declared, nobody waits for it") {
  const std::string mode = Modes();
  INFO(mode);
  RecoveryRun run(Options(mode));
  const nlohmann::json summary = KillOnce(run, "ps:1");
  INFO(summary.dump(2));
  CHECK(summary["examples"] == kExamples);
  CHECK(summary["recoveries"] == 1);
  // 15 steps of two workers, and those between the check and the kill.
  CHECK(summary["lost_pushes"] >= 20);
  CHECK(summary["lost_pushes"] < 200);
  // The workers stayed in the job.
  for (const char* task : {"worker:0", "worker:1"})
    CHECK_THAT(run.job()[task].log(), !Contains("joined again"));
}

TEST_CASE("ps:1 is killed before the first checkpoint: it begins anew, the job goes on") {
  RecoveryRun run(Options("async"));
  run.WaitForStep(15);
  run.Kill("ps:1");
  run.Restart("ps:1");
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["examples"] == kExamples);
  CHECK(summary["lost_pushes"] >= 20);
}

TEST_CASE("ps:0 is killed and comes back: workers join again, no batch counts twice") {
  const std::string mode = Modes();
  INFO(mode);
  RecoveryRun run(Options(mode));
  const nlohmann::json summary = KillOnce(run, "ps:0");
  INFO(summary.dump(2));
  CHECK(summary["examples"] == kExamples);
  for (const char* task : {"worker:0", "worker:1"})
    CHECK_THAT(run.job()[task].log(), Contains("joined again"));
}

TEST_CASE("each task is killed in turn") {
  const std::string mode = Modes();
  INFO(mode);
  RecoveryRun run(Options(mode, {"checkpoint.every_steps=6"}));
  const std::vector<std::string> victims = {"ps:1", "worker:0", "ps:0", "worker:1", "ps:1", "ps:0"};
  for (size_t kill = 0; kill < victims.size(); ++kill) {
    run.WaitForStep(8 + 9 * kill);
    run.Kill(victims[kill]);
    run.Restart(victims[kill]);
  }
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["examples"] == kExamples);
}

TEST_CASE("a stopped job goes on with another number of servers") {
  const std::string mode = Modes();
  INFO(mode);
  const TestFolder folder;
  RecoveryRun::Options options = Options(mode);
  options.directory = folder.path("runs");
  {
    RecoveryRun first(options);
    first.WaitForStep(20);
    first.job()["ps:0"].Signal(SIGTERM);
    for (const char* task : {"ps:0", "ps:1"}) first.job().ExpectExit(task, 143);
  }
  options.servers = 3;
  RecoveryRun second(options);
  const nlohmann::json summary = second.WaitForEnd();
  CHECK_THAT(second.job()["ps:0"].log(), Contains("the job goes on from " + options.directory + "/step-"));
  CHECK(summary["examples"] == kExamples);
  CHECK(summary["test_accuracy"] > 0.8);
}

}  // namespace
}  // namespace weir
