// The bound, and each push at most once, when workers die, hang and come back, and when connections break
// with requests and replies on them. The survivors' histories are checked against the definitions of the
// modes.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/common/telemetry/http_client.h"
#include "tests/history/history_checker.h"
#include "tests/integration/bounded_proxy.h"
#include "tests/integration/bounded_run.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

// A job whose workers write histories, one for each incarnation.
class FaultyJob {
 public:
  FaultyJob(const HistoryRun& run, const std::vector<std::string>& more)
      : run_(run), job_(Options(run, more)) {}

  TestJob& job() { return job_; }
  // The history of the incarnation that StartWorker started under this name.
  std::string History(const std::string& name) const { return job_.folder().path(name + ".history"); }
  void StartWorker(uint32_t rank, const std::string& name) {
    job_.Start(absl::StrCat("worker:", rank), run_.WorkerArgs(rank, History(name)));
  }
  void StartAll() {
    for (uint32_t i = 0; i < kHistoryServers; ++i) job_.Start(absl::StrCat("ps:", i));
    for (uint32_t i = 0; i < kHistoryWorkers; ++i) StartWorker(i, absl::StrCat("worker-", i));
  }

 private:
  static TestJob::Options Options(const HistoryRun& run, const std::vector<std::string>& more) {
    TestJob::Options options{.ps = kHistoryServers, .workers = kHistoryWorkers, .set = run.Set()};
    options.set = With(std::move(options.set), more);
    return options;
  }

  const HistoryRun run_;
  TestJob job_;
};

uint64_t AppliedOfLastIncarnation(const std::vector<HistoryEvent>& events, uint32_t worker) {
  uint64_t incarnation = 0, count = 0;
  for (const HistoryEvent& event : events) {
    if (event.worker == worker) incarnation = std::max(incarnation, event.worker_incarnation);
  }
  for (const HistoryEvent& event : events) {
    if (event.worker == worker && event.worker_incarnation == incarnation && event.is_push &&
        event.outcome == "OK")
      ++count;
  }
  return count;
}

TEST_CASE("a worker is killed and comes back under a new incarnation: the bound holds, every batch once",
          "[transports]") {
  HistoryRun run;
  run.staleness = 2;
  run.examples = 12000;
  // So slow that much work is left when the killed workers are back.
  run.delay = 0.001;
  run.slow_delay = 0.002;
  FaultyJob faulty(run, {"cluster.grace_seconds=0.2"});
  TestJob& job = faulty.job();
  faulty.StartAll();
  // Worker 0 is the slowest: the others wait for it when it dies.
  for (const uint32_t rank : {3, 0}) {
    const std::string task = absl::StrCat("worker:", rank);
    job.WaitForPushes(rank == 3 ? 2000 : 5000);
    job[task].Signal(SIGKILL);
    job.ExpectExit(task, 128 + SIGKILL);
    // The new process waits until its former incarnation is taken out.
    faulty.StartWorker(rank, absl::StrCat("worker-", rank, "-again"));
  }
  job.ExpectAllExit(0);

  std::vector<HistoryEvent> events;
  for (const char* name : {"worker-0", "worker-3"}) ReadHistoryFile(faulty.History(name), true, &events);
  for (const char* name : {"worker-1", "worker-2", "worker-0-again", "worker-3-again"}) {
    ReadHistoryFile(faulty.History(name), false, &events);
  }
  HistoryRules rules = run.Rules();
  rules.membership_changes = true;
  const HistoryReport report = CheckHistory(events, rules);
  INFO(report.ToString());
  CHECK(report.total() == 0);
  CHECK(report.max_lead == run.staleness + 1);
  for (const uint32_t rank : {0, 3}) CHECK(AppliedOfLastIncarnation(events, rank) > 0);
  // The killed workers had not written some 4 KiB of lines each.
  CHECK(report.unaccounted_versions < 200);
  CHECK(report.pushes + report.unaccounted_versions == kHistoryServers * run.examples);
}

TEST_CASE("a worker that hung is fenced: its late push changes nothing, the bound holds", "[transports]") {
  HistoryRun run;
  run.staleness = 1;
  run.examples = 8000;
  run.slow_delay = 0.001;
  FaultyJob faulty(run, {"cluster.lease_seconds=3"});
  TestJob& job = faulty.job();
  faulty.StartAll();
  job.WaitForPushes(2000);
  job["worker:2"].Signal(SIGSTOP);
  job["ps:0"].WaitForLog("worker:2 (rank 2");
  job["worker:2"].Signal(SIGCONT);
  // The worker joins again.
  job.ExpectAllExit(0);

  std::vector<HistoryEvent> events;
  for (uint32_t i = 0; i < kHistoryWorkers; ++i) {
    ReadHistoryFile(faulty.History(absl::StrCat("worker-", i)), false, &events);
  }
  HistoryRules rules = run.Rules();
  rules.membership_changes = true;
  const HistoryReport report = CheckHistory(events, rules);
  INFO(report.ToString());
  CHECK(report.total() == 0);
  CHECK(report.max_lead == run.staleness + 1);
  // At most the answers that were on their way to the worker.
  CHECK(report.unaccounted_versions <= 2);
  CHECK(report.pushes + report.unaccounted_versions == kHistoryServers * run.examples);
}

// The last value of the counter that ps:1 showed: polls until the counter is above 0 or the server has ended.
uint64_t PushesRepeated(TestJob& job, int http_port) {
  while (!job["ps:1"].Ended()) {
    const std::string page = HttpGetPage(http_port, "/metrics").body;
    uint64_t repeated = 0;
    const std::string name = "\nweir_pushes_repeated_total{shard=\"1\"} ";
    if (page.find(name) != std::string::npos) {
      const std::string rest = page.substr(page.find(name) + name.size());
      REQUIRE(absl::SimpleAtoi(rest.substr(0, rest.find('\n')), &repeated));
    }
    if (repeated > 0) return repeated;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}

void RunOverBreakingConnections(HistoryRun run) {
  FaultyJob faulty(run, {});
  TestJob& job = faulty.job();
  const ReservedPort http;
  const std::string http_port = http.address().substr(http.address().rfind(':') + 1);
  job.Start("ps:0");
  job.Start("ps:1", {"--http_port=" + http_port});
  job["ps:1"].WaitForLog("listens on");
  // ps:1 alone: a broken connection there affects pushes and pulls, but no lease.
  const BreakingProxy proxy(job.address("ps:1"), /*seed=*/run.staleness, 50000, 500000);
  for (uint32_t i = 0; i < kHistoryWorkers; ++i) {
    const std::string task = absl::StrCat("worker:", i);
    std::string environment = job.TfConfig(task);
    environment.replace(environment.find(job.address("ps:1")), job.address("ps:1").size(), proxy.address());
    std::vector<std::string> args = job.Args(task);
    for (const std::string& arg : run.WorkerArgs(i, faulty.History(task))) args.push_back(arg);
    job.StartWith(task, args, {{"TF_CONFIG", environment}});
  }
  const uint64_t repeated = PushesRepeated(job, std::stoi(http_port));
  job.ExpectAllExit(0);

  std::vector<HistoryEvent> events;
  for (uint32_t i = 0; i < kHistoryWorkers; ++i) {
    ReadHistoryFile(faulty.History(absl::StrCat("worker:", i)), false, &events);
  }
  // No worker died: the rules are as strict as without faults.
  const HistoryReport report = CheckHistory(events, run.Rules());
  INFO(run.mode << ": " << report.ToString());
  CHECK(report.total() == 0);
  CHECK(report.pushes == kHistoryServers * run.examples);
  if (run.mode == "bounded") CHECK(report.max_lead == run.staleness + 1);
  INFO(proxy.broken_requests() << " requests and " << proxy.broken_replies() << " replies were cut off");
  CHECK(proxy.broken_requests() >= 5);
  CHECK(proxy.broken_replies() >= 5);
  // Pushes whose replies were lost were sent again, and answered from the record.
  CHECK(repeated > 0);
}

TEST_CASE("connections break all the time: every push takes effect once, the bound holds") {
  HistoryRun run;
  run.staleness = 2;
  run.examples = 6000;
  RunOverBreakingConnections(run);
}

TEST_CASE("connections break all the time: sync stays sync") {
  HistoryRun run;
  run.mode = "sync";
  run.examples = 6000;
  RunOverBreakingConnections(run);
}

}  // namespace
}  // namespace weir
