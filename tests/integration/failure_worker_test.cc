// Workers of a running job that die or hang: exit codes, messages and times.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "cli/report/status_text.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

const std::vector<std::string> kSync = {"consistency.mode=sync"};
const std::vector<std::string> kBounded = {"consistency.mode=bounded", "consistency.staleness=2"};
const std::vector<std::string> kAsync = {"consistency.mode=async"};

// A job of at least nearly 2 s (94 batches an epoch, each delayed by 20 ms on average, two workers), so that
// faults strike in the middle of it.
TestJob::Options Slow(const std::vector<std::string>& mode, const std::vector<std::string>& more = {}) {
  return {.set = With(With({"train.epochs=2", "debug.worker_delay=0.04"}, mode), more)};
}
constexpr uint64_t kSlowExamples = 2 * 1500;

void KillWorker(const std::vector<std::string>& mode) {
  TestJob job(Slow(mode, {"cluster.lease_seconds=3600"}));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGKILL);
  // The connection broke, which ends the lease after cluster.grace_seconds (1 s).
  job["ps:0"].WaitForLog("worker:1 (rank 1, incarnation ");
  job.ExpectExit("worker:1", 128 + SIGKILL);
  for (const char* task : {"worker:0", "ps:0", "ps:1"}) job.ExpectExit(task, 0);
  CHECK_THAT(job["ps:0"].log(), Contains(") is taken out: nothing was heard of it for"));
  CHECK(job.Summary()["examples"] == kSlowExamples);
}

TEST_CASE("a killed worker is taken out and the job goes on: sync") { KillWorker(kSync); }
TEST_CASE("a killed worker is taken out and the job goes on: bounded") { KillWorker(kBounded); }
TEST_CASE("a killed worker is taken out and the job goes on: async") { KillWorker(kAsync); }

// Stops a worker for longer than it would wait for ps:0, which is there all the time.
void StopWorker(const std::vector<std::string>& mode) {
  TestJob job(Slow(mode, {"cluster.lease_seconds=2", "cluster.server_wait_seconds=1", "train.epochs=3"}));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGSTOP);
  const Stopwatch watch;
  job["ps:0"].WaitForLog(") is taken out: ");
  CHECK(watch.Elapsed() > Seconds(1));
  job["worker:1"].Signal(SIGCONT);
  job.ExpectAllExit(0);
  CHECK_THAT(job["worker:1"].log(), Contains("fenced") && Contains("joined again"));
  CHECK_THAT(job["ps:0"].log(), Contains("worker:1 joined as rank 1, incarnation 3, at clock "));
  CHECK(job.Summary()["examples"] == 3 * 1500);
}

TEST_CASE("a worker that was stopped is taken out when its lease ends, and joins again when it wakes: sync") {
  StopWorker(kSync);
}
TEST_CASE(
    "a worker that was stopped is taken out when its lease ends, and joins again when it wakes: bounded") {
  StopWorker(kBounded);
}
TEST_CASE(
    "a worker that was stopped is taken out when its lease ends, and joins again when it wakes: async") {
  StopWorker(kAsync);
}

// The worker wakes when the others have done all the work and left.
void SleepThroughTheEnd(const std::vector<std::string>& mode) {
  TestJob job(Slow(mode, {"cluster.lease_seconds=3", "cluster.server_wait_seconds=1", "train.epochs=1"}));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGSTOP);
  job.ExpectExit("worker:0", 0);
  job["worker:1"].Signal(SIGCONT);
  job.ExpectAllExit(0);
  CHECK_THAT(job["worker:1"].log(), Contains("nothing left to do"));
  CHECK_THAT(job["ps:0"].log(), Contains("waiting for worker:1 (lost before) to be told so"));
  CHECK(job.Summary()["examples"] == 1500);
}

TEST_CASE("a worker that sleeps through the job's end is told of it when it wakes: sync") {
  SleepThroughTheEnd(kSync);
}
TEST_CASE("a worker that sleeps through the job's end is told of it when it wakes: bounded") {
  SleepThroughTheEnd(kBounded);
}
TEST_CASE("a worker that sleeps through the job's end is told of it when it wakes: async") {
  SleepThroughTheEnd(kAsync);
}

TEST_CASE("a job whose every task is stopped for longer than all its limits goes on") {
  TestJob job(Slow(kBounded, {"cluster.lease_seconds=1.5", "cluster.server_wait_seconds=1"}));
  job.StartAll();
  job.WaitForPushes(20);
  for (const std::string& task : job.tasks()) job[task].Signal(SIGSTOP);
  // No running task could show when this is long enough.
  std::this_thread::sleep_for(std::chrono::seconds(4));
  for (const std::string& task : job.tasks()) job[task].Signal(SIGCONT);
  job.ExpectAllExit(0);
  CHECK(job.Summary()["examples"] == kSlowExamples);
}

TEST_CASE("while all wait for a worker that hangs, the status and the log say so by name") {
  TestJob job(Slow(kBounded, {"cluster.lease_seconds=60"}));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGSTOP);
  // A push that worker:1 sent before it stopped may be applied after worker:0 began to wait.
  const v1::ClusterStatus status = job.WaitForStatus("a wait of a second", [](const v1::ClusterStatus& s) {
    return s.waits_size() > 0 && s.waits(0).seconds() > 1 && s.waits(0).awaited_size() > 0 &&
           s.seconds_since_update() > 0.5;
  });
  CHECK(status.waits(0).awaited(0) == "worker:1");
  CHECK(status.waits(0).waiting(0) == "worker:0");
  CHECK_THAT(status.waits(0).calls(), Contains("of worker:0 at clock "));
  CHECK_THAT(status.waiting_for(0), Contains("worker:1 (at clock "));
  const v1::ClusterStatus later = job.WaitForStatus("worker:1 is silent", [](const v1::ClusterStatus& s) {
    return std::any_of(s.tasks().begin(), s.tasks().end(), [](const v1::TaskStatus& task) {
      return task.task() == "worker:1" && task.seconds_since_heard() > 4;
    });
  });
  CHECK_THAT(WaitChain(later), Catch::StartsWith("worker:1 stands still, or is cut off: "));
  job["ps:0"].WaitForLog("of worker:0 at clock ");
  CHECK_THAT(job["ps:0"].log(),
             Contains("nothing was applied for ") && Contains(" waits for worker:1 (at clock "));
  job["worker:1"].Signal(SIGCONT);
  job.ExpectAllExit(0);
  CHECK_THAT(job["ps:0"].log(), Contains("goes on after "));
}

TEST_CASE("a killed worker that is started again joins again") {
  TestJob job(Slow(kBounded, {"cluster.grace_seconds=0.2", "train.epochs=4"}));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGKILL);
  job.ExpectExit("worker:1", 128 + SIGKILL);
  job.Start("worker:1");
  job.ExpectAllExit(0);
  CHECK_THAT(job["ps:0"].log(), Contains("worker:1 joined as rank 1, incarnation 3, at clock "));
  CHECK(job.Summary()["examples"] == 4 * 1500);
}

TEST_CASE("SIGTERM of a worker: it exits 143 and the job goes on") {
  TestJob job(Slow(kBounded));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGTERM);
  job.ExpectExit("worker:1", 143, kEndLimit);
  for (const char* task : {"worker:0", "ps:0", "ps:1"}) job.ExpectExit(task, 0);
  CHECK(job.Summary()["examples"] == kSlowExamples);
}

// So long that only the worker's own leave can make others do its work while a test waits.
const std::vector<std::string> kLongLease = {"cluster.grace_seconds=3600", "cluster.lease_seconds=3600",
                                             "cluster.wait_seconds=3600"};

void PreemptWorker(const std::vector<std::string>& mode) {
  TestJob job(Slow(mode, kLongLease));
  job.StartAll();
  job.WaitForPushes(20);
  job["worker:1"].Signal(SIGTERM);
  job.ExpectExit("worker:1", 143, kEndLimit);
  for (const char* task : {"worker:0", "ps:0", "ps:1"}) job.ExpectExit(task, 0);
  CHECK_THAT(job["ps:0"].log(), Contains(") is taken out: it was asked to end: got signal 15"));
  CHECK(job.Summary()["examples"] == kSlowExamples);
}

TEST_CASE("a worker that gets SIGTERM hands its work back at once: sync") { PreemptWorker(kSync); }
TEST_CASE("a worker that gets SIGTERM hands its work back at once: bounded") { PreemptWorker(kBounded); }
TEST_CASE("a worker that gets SIGTERM hands its work back at once: async") { PreemptWorker(kAsync); }

TEST_CASE("a job whose workers all get SIGTERM waits for others, and goes on with them") {
  TestJob job(Slow(kBounded, kLongLease));
  job.StartAll();
  job.WaitForPushes(20);
  for (const char* task : {"worker:0", "worker:1"}) {
    job[task].Signal(SIGTERM);
    job.ExpectExit(task, 143, kEndLimit);
  }
  job["ps:0"].WaitForLog("worker:1 (rank 1, incarnation ");
  job.Start("worker:0");
  job.ExpectExit("worker:0", 0);
  for (const char* task : {"ps:0", "ps:1"}) job.ExpectExit(task, 0);
  CHECK(job.Summary()["examples"] == kSlowExamples);
}

// As a shell script starts what it runs in the background, with nohup.
std::vector<std::string> WithIgnored(const std::string& signals, const std::vector<std::string>& args) {
  return With({"sh", "-c", "trap '' " + signals + "; exec \"$0\" \"$@\""}, args);
}

TEST_CASE("signals that were ignored at the start end neither a server nor a worker") {
  TestJob job({.ps = 1, .set = {}});
  for (const char* task : {"ps:0", "worker:0"}) {
    job.StartWith(task, WithIgnored("HUP INT", job.Args(task)), {{"TF_CONFIG", job.TfConfig(task)}});
  }
  // worker:0 waits for worker:1.
  job.WaitForTask("worker:0", "waiting");
  for (const char* task : {"ps:0", "worker:0"}) {
    for (const int signal : {SIGHUP, SIGINT}) job[task].Signal(signal);
  }
  job.Start("worker:1");
  job.ExpectAllExit(0);
  for (const char* task : {"ps:0", "worker:0"}) CHECK_THAT(job[task].log(), !Contains("got signal"));
}

TEST_CASE("a signal that was not ignored at the start is taken, beside one that was") {
  TestJob job({.ps = 1, .set = {}});
  job.StartWith("ps:0", WithIgnored("INT", job.Args("ps:0")), {{"TF_CONFIG", job.TfConfig("ps:0")}});
  job["ps:0"].WaitForLog("listens on");
  job["ps:0"].Signal(SIGINT);
  job["ps:0"].Signal(SIGTERM);
  job.ExpectExit("ps:0", 143);
  CHECK_THAT(job["ps:0"].log(), Contains("got signal 15") && !Contains("got signal 2"));
}

}  // namespace
}  // namespace weir
