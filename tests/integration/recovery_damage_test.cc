// Jobs whose newest checkpoint, or whose log of pushes, has a flipped bit: the checkpoint before is taken, or
// every task ends for good.
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/program/exit_codes.h"
#include "ps_server/shard/restore/restore.h"
#include "tests/integration/recovery_run.h"
#include "tests/integration/sync_run.h"

namespace weir {
namespace {

using Catch::Contains;

constexpr char kExamples[] = "train.examples=3213";

// No checkpoint is taken by itself.
RecoveryRun::Options Sync(const TestFolder& folder) {
  RecoveryRun::Options options;
  options.config = folder.Write("job.json", DigitsJobText());
  options.set = {kExamples, "debug.worker_delay=0.03", "checkpoint.every_steps=100000"};
  return options;
}

RecoveryRun::Options Async(const std::string& durability) {
  RecoveryRun::Options options;
  options.set = {"consistency.mode=async", "train.epochs=3", "debug.worker_delay=0.04",
                 "checkpoint.every_steps=100000", "server.durability=" + durability};
  return options;
}

// In the middle of the file.
void FlipBit(const std::string& path) {
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  REQUIRE(!bytes.empty());
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  REQUIRE(out.flush().good());
}

std::string DataOf(const std::string& checkpoint, uint32_t shard) {
  return JoinPath(checkpoint, ShardFileName(shard, 2));
}

// The folders of two checkpoints that are taken one after the other.
std::vector<std::string> TakeTwo(RecoveryRun& run) {
  std::vector<std::string> folders;
  for (uint64_t step : {8, 16}) {
    run.WaitForStep(step);
    folders.push_back(run.TakeCheckpoint().directory());
  }
  run.WaitForStep(22);
  return folders;
}

void KillAndRestart(RecoveryRun& run, const std::vector<std::string>& tasks) {
  for (const std::string& task : tasks) run.job()[task].Signal(SIGKILL);
  for (const std::string& task : tasks) run.Kill(task);
  for (const std::string& task : tasks) run.Restart(task);
}

void CheckSaid(RecoveryRun& run, const std::vector<std::string>& folders) {
  CHECK_THAT(run.job()["ps:0"].log(), Contains("passed over " + folders[1] + ", which is damaged (ps:1") &&
                                          Contains(DataOf(folders[1], 1) + ": tensor '") &&
                                          Contains("the job goes on from " + folders[0]));
  CHECK_THAT(WhyMarked(FileSystem::Posix(), folders[1]), Contains(DataOf(folders[1], 1)));
}

TEST_CASE("sync: the newest checkpoint is damaged; the bits are those of a run without faults") {
  const bool all = GENERATE(false, true);  // all servers are started again, or one
  INFO(all);
  const TestFolder folder;
  RecoveryRun run(Sync(folder));
  const std::vector<std::string> folders = TakeTwo(run);
  FlipBit(DataOf(folders[1], 1));
  KillAndRestart(run, all ? std::vector<std::string>{"ps:0", "ps:1"} : std::vector<std::string>{"ps:1"});
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["steps"] == SerialDigits({kExamples}).steps);
  CHECK(summary["weights_sha256"] == SerialDigits({kExamples}).weights_sha256);
  CheckSaid(run, folders);
}

TEST_CASE("async: the newest checkpoint is damaged; with the log no push is lost") {
  const std::string durability = GENERATE(as<std::string>(), "none", "log");
  const bool all = GENERATE(false, true);
  INFO(durability << ", " << all);
  RecoveryRun run(Async(durability));
  const std::vector<std::string> folders = TakeTwo(run);
  FlipBit(DataOf(folders[1], 1));
  KillAndRestart(run, all ? std::vector<std::string>{"ps:0", "ps:1"} : std::vector<std::string>{"ps:1"});
  const nlohmann::json summary = run.WaitForEnd();
  INFO(summary.dump(2));
  CHECK(summary["examples"] == 3 * 1500);
  if (durability == "log") CHECK(summary["lost_pushes"] == 0);
  if (durability == "none" && !all) CHECK(summary["lost_pushes"] > 0);
  CheckSaid(run, folders);
}

TEST_CASE("no checkpoint is whole: every task ends for good, and says what was seen") {
  const TestFolder folder;
  RecoveryRun run(Sync(folder));
  const std::vector<std::string> folders = TakeTwo(run);
  for (const std::string& checkpoint : folders) FlipBit(DataOf(checkpoint, 1));
  KillAndRestart(run, {"ps:1"});
  for (const char* task : {"ps:0", "ps:1", "worker:0", "worker:1"}) run.job().ExpectExit(task, kExitConfig);
  CHECK_THAT(run.job()["ps:0"].log(), Contains("no whole checkpoint is there to go on from") &&
                                          Contains(DataOf(folders[0], 1)) && Contains(DataOf(folders[1], 1)));
}

TEST_CASE("a damaged record in the log: every task ends for good, with the file and the place") {
  RecoveryRun run(Async("log"));
  TakeTwo(run);
  const std::string log = LogFolder(run.directory(), 1, 2);
  run.Kill("ps:1");
  const auto segments = FileSystem::Posix().List(log);
  REQUIRE(segments.ok());
  std::string newest;
  for (const std::string& name : *segments) {
    if (name.find(".log") != std::string::npos) newest = name;
  }
  FlipBit(JoinPath(log, newest));
  run.Restart("ps:1");
  for (const char* task : {"ps:0", "ps:1", "worker:0", "worker:1"}) run.job().ExpectExit(task, kExitConfig);
  CHECK_THAT(run.job()["ps:0"].log(),
             Contains(JoinPath(log, newest) + ": the record at byte ") && Contains("would be lost"));
}

}  // namespace
}  // namespace weir
