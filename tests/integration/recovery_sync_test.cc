// A sync job whose servers and workers are killed ends with the bits of a run without faults, with any number
// of servers after the kill.
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/recovery_run.h"
#include "tests/integration/sync_run.h"

namespace weir {
namespace {

using Catch::Contains;

// 101 steps of 4 parts, the last one short.
constexpr char kExamples[] = "train.examples=3213";

void CheckBits(const nlohmann::json& summary, const std::vector<std::string>& more = {}) {
  const SerialRun& expected = SerialDigits(With({kExamples}, more));
  CHECK(summary["steps"] == expected.steps);
  CHECK(summary["weights_sha256"] == expected.weights_sha256);
}

// Delayed, so that the job is still young when the kills come.
RecoveryRun::Options Options(const TestFolder& folder, std::vector<std::string> more = {}) {
  RecoveryRun::Options options;
  options.config = folder.Write("job.json", DigitsJobText());
  options.set = {kExamples, "debug.worker_delay=0.03", "checkpoint.every_steps=5", "checkpoint.keep=2"};
  options.set = With(std::move(options.set), more);
  return options;
}

TEST_CASE("nobody is killed; checkpoints change no bits") {
  const TestFolder folder;
  RecoveryRun run(Options(folder));
  const nlohmann::json summary = run.WaitForEnd();
  CheckBits(summary);
  CHECK(summary["recoveries"] == 0);
  CHECK_THAT(summary["checkpoint"].get<std::string>(), Contains(run.directory() + "/step-"));
}

TEST_CASE("ps:1, then ps:0, then a worker are killed and come back") {
  // Also between the rounds in which a step is measured, and with rounds of ten local steps, whose pushes are
  // quantised.
  const auto more = GENERATE(values<std::vector<std::string>>(
      {{},
       {"train.clip=mean", "train.clip_norm=0.2", "optimizer.type=lamb", "optimizer.weight_decay=0.01"},
       {R"(local={"steps":10,"inner":{"type":"adam","learning_rate":0.003}})", "optimizer.type=nesterov",
        "optimizer.learning_rate=0.7", "wire.push_dtype=int8", "model.layers[1].units=128",
        "train.examples=25613", "debug.worker_delay=0.003"}}));
  const TestFolder folder;
  RecoveryRun run(Options(folder, more));
  run.WaitForStep(12);
  run.Kill("ps:1");
  run.Restart("ps:1");
  run.WaitForStep(30);
  run.Kill("ps:0");
  run.Restart("ps:0");
  run.WaitForStep(50);
  run.Kill("worker:1");
  run.Restart("worker:1");
  CheckBits(run.WaitForEnd(), more);
  CHECK_THAT(run.job()["worker:0"].log(), Contains("joined again"));
}

TEST_CASE("ps:1 is asked to end and comes back: the workers wait for it") {
  const TestFolder folder;
  RecoveryRun run(Options(folder));
  run.WaitForStep(12);
  // The first signal alone would let ps:1 wait, for seconds, whether ps:0 ends the job.
  for (const int signal : {SIGTERM, SIGINT}) run.job()["ps:1"].Signal(signal);
  CHECK(run.job()["ps:1"].Wait() == kExitDrained);
  run.Restart("ps:1");
  CheckBits(run.WaitForEnd());
}

TEST_CASE("a server is lost before the first checkpoint: the job begins anew") {
  const TestFolder folder;
  RecoveryRun run(Options(folder, {"checkpoint.every_steps=100000"}));
  run.WaitForStep(10);
  run.Kill("ps:1");
  run.Restart("ps:1");
  const auto status = run.WaitUntilWhole();
  CHECK(status.checkpoint().empty());
  const nlohmann::json summary = run.WaitForEnd();
  CheckBits(summary);
  CHECK(summary["recoveries"] == 1);
}

TEST_CASE("all servers at once") {
  const TestFolder folder;
  RecoveryRun run(Options(folder));
  run.WaitForStep(20);
  for (const char* task : {"ps:0", "ps:1"}) run.job()[task].Signal(SIGKILL);
  for (const char* task : {"ps:0", "ps:1"}) run.Kill(task);
  for (const char* task : {"ps:1", "ps:0"}) run.Restart(task);
  CheckBits(run.WaitForEnd());
}

TEST_CASE("a server is killed again while the job recovers") {
  const TestFolder folder;
  RecoveryRun run(Options(folder));
  run.WaitForStep(20);
  for (int kill = 0; kill < 3; ++kill) {
    run.Kill("ps:1");
    run.Restart("ps:1");
  }
  run.WaitForStep(25);
  CheckBits(run.WaitForEnd());
}

TEST_CASE("everything is killed over and over") {
  const TestFolder folder;
  RecoveryRun run(Options(folder));
  const std::vector<std::string> victims = {"ps:1", "worker:0", "ps:0", "worker:1"};
  for (uint64_t kill = 0; kill < 8; ++kill) {
    run.WaitForStep(8 + 9 * kill);
    const std::string& victim = victims[kill % victims.size()];
    INFO("kill " << kill << ", of " << victim);
    run.Kill(victim);
    run.Restart(victim);
  }
  CheckBits(run.WaitForEnd());
}

TEST_CASE("stopped with two servers and gone on with on three, and with more workers") {
  const TestFolder folder;
  RecoveryRun::Options options = Options(folder, {"checkpoint.every_steps=100000"});
  options.directory = folder.path("runs");
  {
    RecoveryRun first(options);
    first.WaitForStep(30);
    // A checkpoint, and then the end.
    first.job()["ps:0"].Signal(SIGTERM);
    for (const char* task : {"ps:0", "ps:1"}) first.job().ExpectExit(task, kExitDrained);
    for (const char* task : {"worker:0", "worker:1"}) first.job().ExpectExit(task, kExitPeerLost);
  }
  options.servers = 3;
  options.workers = 3;
  {
    RecoveryRun second(options);
    const auto status = second.WaitUntilWhole();
    CHECK(status.step() >= 30);
    CheckBits(second.WaitForEnd());
  }
  // No work is left.
  {
    RecoveryRun third(options);
    third.job().ExpectAllExit(0);
  }
  // This setting makes another job, which is refused every time.
  options.set.push_back("data.batch_size=3");
  RecoveryRun fourth(options);
  fourth.job().ExpectExit("ps:0", kExitConfig);
}

TEST_CASE("a worker that stands still loses its lease, joins again when it wakes, and is of use") {
  const TestFolder folder;
  RecoveryRun run(Options(folder, {"cluster.lease_seconds=3"}));
  run.WaitForStep(10);
  run.job()["worker:1"].Signal(SIGSTOP);
  run.job().WaitForStatus("worker:1 to be taken out",
                          [](const auto& status) { return status.membership().members_size() == 1; });
  run.job()["worker:0"].Signal(SIGSTOP);
  run.job()["worker:1"].Signal(SIGCONT);
  run.job()["worker:1"].WaitForLog("joined again");
  run.job()["worker:0"].Signal(SIGCONT);
  CheckBits(run.WaitForEnd());
}

TEST_CASE("a server that does not come back ends the job for everybody, who name it") {
  const TestFolder folder;
  RecoveryRun run(Options(folder, {"cluster.server_wait_seconds=2"}));
  run.WaitForStep(10);
  SECTION("ps:1") {
    run.Kill("ps:1");
    for (const char* task : {"ps:0", "worker:0", "worker:1"}) {
      run.job().ExpectExit(task, kExitPeerLost);
      CHECK_THAT(run.job()[task].log(), Contains("ps:1"));
    }
  }
  SECTION("ps:0") {
    run.Kill("ps:0");
    for (const char* task : {"ps:1", "worker:0", "worker:1"}) {
      run.job().ExpectExit(task, kExitPeerLost);
      CHECK_THAT(run.job()[task].log(), Contains("ps:0"));
    }
  }
}

}  // namespace
}  // namespace weir
