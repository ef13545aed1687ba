// Jobs of real processes whose disk is full when all examples are done.
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "cli/commands/grpc_status_client.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/program/exit_codes.h"
#include "common/system/file_system.h"
#include "tests/chaos/small_disk.h"
#include "tests/integration/processes.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

// A small disk that exists as long as this object.
class Disk {
 public:
  Disk() {
    // Once in this process.
    static const absl::Status kAllowed = SmallDisk::EnterNamespace();
    status_ = kAllowed;
    fs::create_directory(path());
    if (status_.ok()) status_ = SmallDisk::Mount(path());
    if (!status_.ok()) {
      SaySkipped(
          absl::StrCat("this system gives no namespace to mount a small disk in (", status_.message(), ")"));
    }
  }
  ~Disk() {
    if (status_.ok()) SmallDisk::Unmount(path());
  }
  bool there() const { return status_.ok(); }
  std::string path() const { return folder_.path("disk"); }
  std::string runs() const { return path() + "/runs"; }

 private:
  const TestFolder folder_;
  absl::Status status_;
};

// A job that has a checkpoint of its middle, and comes to its end with a disk that has no room for another.
// Returns the folder of that checkpoint.
std::string ComeToTheEnd(const Disk& disk, TestJob& job, uint64_t spare) {
  job.StartAll();
  job.WaitForPushes(10);
  // No worker trains until the disk is full.
  for (const char* worker : {"worker:0", "worker:1"}) job[worker].Signal(SIGSTOP);
  const auto taken = StatusClient(job.address("ps:0")).TakeCheckpoint(absl::Seconds(30));
  INFO(taken.status());
  REQUIRE(taken.ok());
  REQUIRE(SmallDisk::Fill(disk.path(), spare).ok());
  for (const char* worker : {"worker:0", "worker:1"}) job[worker].Signal(SIGCONT);
  return taken->directory();
}

TestJob::Options Digits(const Disk& disk, const std::string& save_wait) {
  // Delayed, so that the job has not ended when it is stopped.
  return {.set = {"train.epochs=8", "debug.worker_delay=0.02", "checkpoint.directory=" + disk.runs(),
                  "checkpoint.every_steps=1000000", "checkpoint.save_wait_seconds=" + save_wait}};
}

std::vector<std::string> Checkpoints(const Disk& disk) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(disk.runs())) {
    if (entry.path().filename() != "coordinator") names.push_back(entry.path().string());
  }
  return names;
}

TEST_CASE("a disk that stays full at the job's end: every task exits 74, what is complete stays, alone") {
  const Disk disk;
  if (!disk.there()) return;
  // Full to the last byte; and with room for records, but not for a shard's file.
  const uint64_t spare = GENERATE(0, 48 << 10);
  TestJob job(Digits(disk, "2"));
  const std::string middle = ComeToTheEnd(disk, job, spare);
  job.ExpectAllExit(kExitStorage);
  const std::string log = job["ps:0"].log();
  INFO(log);
  CHECK_THAT(log,
             Contains("the job cannot be saved yet: ") &&
                 Contains("storage failed: all 12000 examples are done, but they could not be saved within "
                          "checkpoint.save_wait_seconds = 2: ") &&
                 Contains("No space left on device") && Contains("the job goes on from " + middle));
  CHECK(Checkpoints(disk) == std::vector<std::string>{middle});
  // The summary reports what was computed.
  CHECK_THAT(job.Summary()["failure"], Contains("storage failed"));
  CHECK(job.Summary()["examples"] == 12000);
  // With room the job goes on from there.
  SmallDisk::Free(disk.path());
  job.StartAll();
  job.ExpectAllExit(0);
  CHECK_THAT(job["ps:0"].log(), Contains(middle));
}

TEST_CASE("a disk that is full when the job starts: ps:0 waits for room, and then exits 74") {
  const Disk disk;
  if (!disk.there()) return;
  REQUIRE(SmallDisk::Fill(disk.path(), 0).ok());
  {
    TestJob job(Digits(disk, "2"));
    job.StartAll();
    job.ExpectExit("ps:0", kExitStorage);
    CHECK_THAT(
        job["ps:0"].log(),
        Contains("ps:0 cannot start yet: checkpoint.directory: ") &&
            Contains("storage failed: ps:0 could not write there within checkpoint.save_wait_seconds = 2") &&
            Contains("No space left on device"));
  }
  TestJob job(Digits(disk, "60"));
  job.StartAll();
  job["ps:0"].WaitForLog("ps:0 cannot start yet: ");
  SmallDisk::Free(disk.path());
  job.ExpectAllExit(0);
}

TEST_CASE("room that comes free in time lets the job end well") {
  const Disk disk;
  if (!disk.there()) return;
  TestJob job(Digits(disk, "60"));
  const std::string middle = ComeToTheEnd(disk, job, 48 << 10);
  job["ps:0"].WaitForLog("the job cannot be saved yet: ");
  SmallDisk::Free(disk.path());
  job.ExpectAllExit(0);
  CHECK(Checkpoints(disk).size() == 2);
  const auto newest = LatestComplete(FileSystem::Posix(), disk.runs());
  REQUIRE(newest.ok());
  CHECK(newest->folder == job.Summary()["checkpoint"]);
  CHECK(newest->folder != middle);
}

TEST_CASE("a summary that finds no room: the job is done, its exit code says so, its log has the summary") {
  const RunResult run = RunToEnd(
      {"worker/worker", "--config=configs/digits.json", "--set", "train.epochs=1", "--summary=/dev/full"});
  INFO(run.output);
  CHECK(run.status == kExitStorage);
  CHECK_THAT(run.output, Contains("storage failed: the job is done, but the summary could not be written to "
                                  "/dev/full: No space left on device. It is: {\"name\":\"digits\"") &&
                             Contains("\"test_accuracy\":0."));
}

}  // namespace
}  // namespace weir
