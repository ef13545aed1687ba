// Servers that come back at another address, started by hand with a cluster spec in which only their own
// entry is new: the other tasks, which have the old spec, find them.
#include <csignal>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/recovery_run.h"
#include "tests/integration/sync_run.h"

namespace weir {
namespace {

using Catch::Contains;

// sync: 61 steps of 4 parts.
constexpr char kExamples[] = "train.examples=1952";

// Delayed, so that the job is still young when the kills come.
RecoveryRun::Options Sync(const TestFolder& folder) {
  RecoveryRun::Options options;
  options.config = folder.Write("job.json", DigitsJobText());
  options.set = {kExamples, "debug.worker_delay=0.03", "checkpoint.every_steps=5"};
  return options;
}

RecoveryRun::Options AsyncWithLog() {
  RecoveryRun::Options options;
  options.set = {"consistency.mode=async", "server.durability=log", "train.epochs=3",
                 "debug.worker_delay=0.04", "checkpoint.every_steps=20"};
  return options;
}

TEST_CASE("sync: ps:1 comes back elsewhere, twice, and ps:0 in between, to the same bits") {
  const TestFolder folder;
  RecoveryRun run(Sync(folder));
  run.WaitForStep(8);
  run.Kill("ps:1");
  run.RestartElsewhere("ps:1");
  run.WaitForStep(16);
  const std::string moved = run.AddressNow("ps:1");
  CHECK(moved != run.job().address("ps:1"));
  CHECK_THAT(run.job()["ps:0"].log(), Contains("ps:1 is at " + moved + " now"));
  // ps:1's next incarnation knows the address from the old spec alone.
  run.Kill("ps:0");
  run.Restart("ps:0");
  run.WaitForStep(24);
  run.Kill("ps:1");
  run.RestartElsewhere("ps:1");
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["steps"] == SerialDigits({kExamples}).steps);
  CHECK(summary["weights_sha256"] == SerialDigits({kExamples}).weights_sha256);
  for (const char* task : {"worker:0", "worker:1"})
    CHECK_THAT(run.job()[task].log(), Contains("joined again"));
}

TEST_CASE("async: ps:1 comes back elsewhere, the workers go on, and nothing is lost") {
  RecoveryRun run(AsyncWithLog());
  run.WaitForStep(30);
  run.Kill("ps:1");
  run.RestartElsewhere("ps:1");
  const nlohmann::json summary = run.WaitForEnd();
  INFO(summary.dump(2));
  CHECK(summary["examples"] == 3 * 1500);
  CHECK(summary["recoveries"] == 1);
  CHECK(summary["lost_pushes"] == 0);
  for (const char* task : {"worker:0", "worker:1"}) {
    CHECK_THAT(run.job()[task].log(),
               Contains("ps:1 is at " + run.AddressNow("ps:1") + " now") && !Contains("joined again"));
  }
}

TEST_CASE("ps:0 and ps:1 are killed together, ps:1 comes back elsewhere") {
  const TestFolder folder;
  const std::string first =
      GENERATE(as<std::string>(), "ps:1", "ps:0", "ps:0 with the new spec, which the workers have not");
  INFO("first: " << first);
  const bool sync = first == "ps:1";
  RecoveryRun run(sync ? Sync(folder) : AsyncWithLog());
  run.WaitForStep(sync ? 12 : 30);
  run.Kill("ps:0");
  run.Kill("ps:1");
  if (first == "ps:1") {
    run.RestartElsewhere("ps:1");
    run.job()["ps:1"].WaitForLog("listens on " + run.AddressNow("ps:1"));
    run.Restart("ps:0");
  } else if (first == "ps:0") {
    run.Restart("ps:0");
    run.job()["ps:0"].WaitForLog("listens on");
    run.RestartElsewhere("ps:1");
  } else {
    run.RestartElsewhere("ps:1");
    run.RestartWithNewSpec("ps:0");
  }
  const nlohmann::json summary = run.WaitForEnd();
  if (sync) {
    CHECK(summary["weights_sha256"] == SerialDigits({kExamples}).weights_sha256);
  } else {
    CHECK(summary["examples"] == 3 * 1500);
    CHECK(summary["lost_pushes"] == 0);
  }
}

TEST_CASE("a second ps:1 is refused, and changes nothing") {
  const TestFolder folder;
  RecoveryRun run(Sync(folder));
  run.WaitForStep(5);
  TestProcess second(run.ArgsElsewhere("ps:1"), {}, folder.path("second.log"));
  CHECK(second.Wait() == kExitConfig);
  CHECK_THAT(second.log(), Contains("ps:1 at " + run.job().address("ps:1") + " is alive") &&
                               Contains(run.AddressNow("ps:1")));
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["weights_sha256"] == SerialDigits({kExamples}).weights_sha256);
  CHECK(summary["recoveries"] == 0);
}

TEST_CASE("a server that hung and was replaced is turned away when it wakes") {
  RecoveryRun::Options options = AsyncWithLog();
  options.set.push_back("cluster.lease_seconds=2");
  RecoveryRun run(options);
  run.WaitForStep(10);
  TestProcess& hung = run.job()["ps:1"];
  hung.Signal(SIGSTOP);
  TestProcess second(run.ArgsElsewhere("ps:1"), {}, run.directory() + "/../second.log");
  run.job()["ps:0"].WaitForLog("ps:1 at " + run.AddressNow("ps:1") + " is back after");
  hung.Signal(SIGCONT);
  CHECK(hung.Wait() == kExitConfig);
  CHECK_THAT(hung.log(), Contains("ps:1 at " + run.AddressNow("ps:1") + " is alive"));
  for (const char* task : {"worker:0", "worker:1", "ps:0"}) run.job().ExpectExit(task, 0);
  CHECK(second.Wait() == 0);
  const nlohmann::json summary = run.job().Summary();
  CHECK(summary["examples"] == 3 * 1500);
  CHECK(summary["lost_pushes"] == 0);
}

}  // namespace
}  // namespace weir
