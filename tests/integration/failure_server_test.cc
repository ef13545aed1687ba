// Servers of a running job that die or hang, and tasks that never come: exit codes, messages and times.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/status_text.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

const std::vector<std::string> kSync = {"consistency.mode=sync"};
const std::vector<std::string> kBounded = {"consistency.mode=bounded", "consistency.staleness=2"};

// A job that only a failure ends.
TestJob::Options Endless(const std::vector<std::string>& more) {
  return {.set = With({"consistency.mode=async", "train.epochs=100000"}, more)};
}

// Sends `signal` to a server in the middle of the job and expects that the others end with 138 and name it.
void LoseServer(const std::string& server, int signal, const std::vector<std::string>& mode,
                std::chrono::milliseconds limit, int server_status) {
  TestJob job(Endless(mode));
  job.StartAll();
  job.WaitForPushes(20);
  job[server].Signal(signal);
  const Stopwatch watch;
  for (const std::string& task : job.tasks()) {
    if (task == server) continue;
    const auto left = limit - std::chrono::duration_cast<std::chrono::milliseconds>(watch.Elapsed());
    job.ExpectExit(task, 138, std::max(left, std::chrono::milliseconds(1)));
    INFO(task << " said:\n" << job[task].log());
    // Role, index and address; ps:1 learns of ps:0 from its connection.
    CHECK_THAT(job[task].log(), Contains(server));
    if (signal != SIGTERM && task != "ps:1") CHECK_THAT(job[task].log(), Contains(job.address(server)));
  }
  if (signal == SIGSTOP) job[server].Signal(SIGCONT);
  job.ExpectExit(server, server_status, kEndLimit);
}

TEST_CASE("ps:1 is killed: the others end with 138 and name it, sync") {
  LoseServer("ps:1", SIGKILL, kSync, kEndLimit, 128 + SIGKILL);
}
TEST_CASE("ps:1 is killed: the others end with 138 and name it, async") {
  LoseServer("ps:1", SIGKILL, {}, kEndLimit, 128 + SIGKILL);
}
TEST_CASE("ps:0 is killed: the others end with 138 and name it, bounded") {
  LoseServer("ps:0", SIGKILL, kBounded, kEndLimit, 128 + SIGKILL);
}
// ps:1 stands still, and comes back before its lease ends.
void StopServer(const std::vector<std::string>& mode) {
  TestJob job(Endless(With(mode, {"cluster.lease_seconds=60"})));
  job.StartAll();
  job.WaitForPushes(20);
  job["ps:1"].Signal(SIGSTOP);
  const std::string name = "ps:1 at " + job.address("ps:1");
  const v1::ClusterStatus status = job.WaitForStatus("ps:1 is silent", [&](const v1::ClusterStatus& s) {
    return s.waiting_for_size() > 0 && absl::StartsWith(s.waiting_for(0), name + " to answer");
  });
  CHECK(status.seconds_since_update() > 2);
  const std::string why = WaitChain(status);
  INFO(why);
  const std::string still = name + " stands still, or is cut off: nothing was heard of it for ";
  CHECK(absl::StartsWith(why, still));
  const std::vector<std::string> lines = absl::StrSplit(why, '\n', absl::SkipEmpty());
  CHECK_THAT(lines.back(), Contains(still));
  CHECK_THAT(why, !Contains("or has stopped"));
  job["ps:1"].Signal(SIGCONT);
  job.WaitForStatus("ps:1 answers", [](const v1::ClusterStatus& s) {
    return s.seconds_since_update() < 1 &&
           (s.waiting_for_size() == 0 || !absl::StartsWith(s.waiting_for(0), "ps:1"));
  });
}

TEST_CASE("ps:1 stands still: the status names it first and blames nobody else, sync") { StopServer(kSync); }
TEST_CASE("ps:1 stands still: the status names it first and blames nobody else, bounded") {
  StopServer(kBounded);
}
TEST_CASE("ps:1 stands still: the status names it first and blames nobody else, async") { StopServer({}); }

TEST_CASE("ps:1 hangs: the others end with 138 after the lease and name it") {
  LoseServer("ps:1", SIGSTOP, {"cluster.lease_seconds=2"}, kEndLimit, 138);
}
TEST_CASE("ps:0 hangs: the others end with 138 after the lease and name it") {
  LoseServer("ps:0", SIGSTOP, {"cluster.lease_seconds=2"}, kEndLimit, 138);
}
TEST_CASE("SIGTERM of ps:1: it exits 143, the others 138") {
  LoseServer("ps:1", SIGTERM, kBounded, kEndLimit, 143);
}
TEST_CASE("SIGTERM of ps:0: it exits 143, the others 138") {
  LoseServer("ps:0", SIGTERM, kSync, kEndLimit, 143);
}

// ---- the start

TEST_CASE("a server that is ended waits for nobody who has a connection to it and no call") {
  // A peer that does not read a notice would cost two seconds each time. A busy machine may, now and then.
  bool at_once = false;
  for (int tries = 0; tries < 5 && !at_once; ++tries) {
    TestJob job(Endless({}));
    job.Start("ps:0");
    // No call is open on this connection.
    StatusClient idle(job.address("ps:0"));
    job.WaitForStatus("the server answers", [](const v1::ClusterStatus&) { return true; });
    REQUIRE(idle.Get(absl::Seconds(20)).ok());
    const Stopwatch watch;
    job["ps:0"].Signal(SIGTERM);
    job.ExpectExit("ps:0", 143);
    at_once = watch.Elapsed() < Seconds(1.5);
  }
  CHECK(at_once);
}

TEST_CASE("a missing worker: the job does not start, everybody ends with 138 and says who is missing") {
  TestJob job({.set = {"cluster.start_seconds=2"}});
  for (const char* task : {"ps:0", "ps:1", "worker:0"}) job.Start(task);
  const Stopwatch watch;
  job.ExpectAllExit(138);
  CHECK(watch.Elapsed() > Seconds(1.5));
  CHECK(watch.Elapsed() < Seconds(kEndLimit));
  for (const char* task : {"ps:0", "worker:0"}) {
    INFO(task);
    CHECK_THAT(job[task].log(), Contains("start_seconds = 2") && Contains("missing: worker:1 at 127.0.0.1:"));
  }
}

TEST_CASE("a missing ps:1: everybody ends with 138 and names it") {
  TestJob job({.set = {"cluster.start_seconds=2"}});
  for (const char* task : {"ps:0", "worker:0", "worker:1"}) job.Start(task);
  job.ExpectAllExit(138);
  for (const char* task : {"ps:0", "worker:0", "worker:1"}) {
    CHECK_THAT(job[task].log(), Contains("missing: ps:1 at " + job.address("ps:1")));
  }
}

TEST_CASE("who waits for ps:0 says so every ten seconds, in the log's own format") {
  TestJob job({});
  for (const char* task : {"ps:1", "worker:0"}) job.Start(task, {"--log_format=json"});
  const std::string at = " at " + job.address("ps:0");
  job["ps:1"].WaitForLog("waits for ps:0 (coordinator)" + at);
  job["worker:0"].WaitForLog("waits for ps:0 (coordinator)" + at);
  for (const char* task : {"ps:1", "worker:0"}) {
    const std::vector<std::string> lines = absl::StrSplit(job[task].log(), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      INFO(line);
      CHECK(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false)["task"] == task);
    }
  }
}

TEST_CASE("a missing ps:0: everybody ends with 138 and names it") {
  TestJob job({.set = {"cluster.start_seconds=2"}});
  for (const char* task : {"ps:1", "worker:0", "worker:1"}) job.Start(task);
  job.ExpectAllExit(138);
  CHECK_THAT(job["ps:1"].log(), Contains("ps:0 (coordinator) did not attach within 2s"));
  for (const char* task : {"worker:0", "worker:1"}) {
    CHECK_THAT(job[task].log(), Contains("ps:0 (coordinator) at " + job.address("ps:0")));
  }
}

}  // namespace
}  // namespace weir
