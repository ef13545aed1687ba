// The histories of real jobs' workers, checked against the definitions of the modes by an independent checker
// (tests/history). Bounded(s): at least 100,000 pulls over gRPC between processes in all.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/config/job_config.h"
#include "local/in_process_cluster.h"
#include "ps_server/consistency/policy.h"
#include "tests/history/history_checker.h"
#include "tests/integration/bounded_run.h"
#include "tests/integration/processes.h"
#include "tests/integration/transport.h"

namespace weir {
namespace {

constexpr const char* kConfig = "tests/integration/digits.json";

TEST_CASE("bounded(s) between processes: 100,000 pulls without a violation, and the lead s + 1 is reached",
          "[transports]") {
  // Fewer over each further transport.
  const uint64_t share = TransportUnderTest().empty() ? 1 : 6;
  uint64_t pulls = 0;
  for (const uint64_t staleness : {0, 1, 3, 8}) {
    HistoryRun run;
    run.staleness = staleness;
    run.examples = 12600 / share;
    run.slow_delay = 0.002;
    const HistorySeen seen = RunHistoryJob(run);
    INFO("s = " << staleness << ": " << seen.report.ToString());
    CHECK(seen.report.total() == 0);
    CHECK(seen.report.max_lead == staleness + 1);
    CHECK(seen.report.pushes == kHistoryServers * run.examples);
    // The servers' own measurement.
    CHECK(seen.summary["lead"]["max"] == staleness + 1);
    pulls += seen.report.pulls;
  }
  CHECK(pulls >= 100000 / share);
}

TEST_CASE("bounded(s) with prefetch: the bound holds, and pulls do without the worker's own newest pushes") {
  for (const uint64_t staleness : {1, 3}) {
    HistoryRun run;
    run.staleness = staleness;
    run.prefetch = true;
    run.examples = 3000;
    run.slow_delay = 0.002;
    const HistorySeen seen = RunHistoryJob(run);
    INFO("s = " << staleness << ": " << seen.report.ToString());
    CHECK(seen.report.total() == 0);
    CHECK(seen.report.max_lead == staleness + 1);
    CHECK(seen.report.pushes == kHistoryServers * run.examples);
    // Some pulls were answered before the push of the clock before, which is impossible without prefetch.
    HistoryRules strict = run.Rules();
    strict.prefetch = false;
    const HistoryReport early = CheckHistory(seen.events, strict);
    CHECK(early.count(HistoryRule::kOwnPushes) > 0);
    CHECK(early.total() == early.count(HistoryRule::kOwnPushes));
  }
}

TEST_CASE("a server whose bound is s + 1 is found out") {
  for (const uint64_t staleness : {0, 3}) {
    HistoryRun run;
    run.staleness = staleness;
    run.examples = 2000;
    run.slow_delay = 0.002;
    const auto config = LoadJobConfig(kConfig, run.Set());
    REQUIRE(config.ok());
    InProcessCluster::Options options;
    options.config = *config;
    options.servers = kHistoryServers;
    options.workers = kHistoryWorkers;
    options.make_policy = [staleness](const v1::JobConfig&, const v1::Install&) {
      return MakeBoundedPolicy(staleness + 1);
    };
    const auto servers = InProcessCluster::Start(std::move(options));
    REQUIRE(servers.ok());

    const TestFolder folder;
    std::vector<std::unique_ptr<TestProcess>> workers;
    std::vector<std::string> logs;
    for (uint32_t i = 0; i < kHistoryWorkers; ++i) {
      std::vector<std::string> args = {"worker/worker", absl::StrCat("--config=", kConfig)};
      for (const std::string& override : run.Set()) args.insert(args.end(), {"--set", override});
      logs.push_back(folder.path(absl::StrCat("worker-", i, ".history")));
      for (const std::string& arg : run.WorkerArgs(i, logs.back())) args.push_back(arg);
      nlohmann::json environment;
      environment["cluster"]["ps"] = (*servers)->addresses();
      // A dynamic spec: this worker alone, which receives no calls.
      environment["cluster"]["worker"][std::to_string(i)] = "127.0.0.1:1";
      environment["task"] = {{"type", "worker"}, {"index", i}};
      workers.push_back(std::make_unique<TestProcess>(
          args, std::map<std::string, std::string>{{"TF_CONFIG", environment.dump()}},
          folder.path(absl::StrCat("worker-", i, ".log"))));
    }
    std::vector<HistoryEvent> events;
    for (uint32_t i = 0; i < kHistoryWorkers; ++i) {
      const int status = workers[i]->Wait();
      INFO(workers[i]->log());
      CHECK(status == 0);
      ReadHistoryFile(logs[i], /*cut=*/false, &events);
    }
    CHECK((*servers)->Wait().ok());

    const HistoryReport report = CheckHistory(events, run.Rules());
    INFO("s = " << staleness << ": " << report.ToString());
    CHECK(report.count(HistoryRule::kFreshness) > 0);
    CHECK(report.count(HistoryRule::kWatermarks) > 0);
    CHECK(report.count(HistoryRule::kLead) > 0);
    // No other rule is violated, and by the patched bound none is.
    CHECK(report.total() == report.count(HistoryRule::kFreshness) + report.count(HistoryRule::kWatermarks) +
                                report.count(HistoryRule::kLead));
    HistoryRules patched = run.Rules();
    patched.staleness = staleness + 1;
    CHECK(CheckHistory(events, patched).total() == 0);
  }
}

TEST_CASE("async between processes: own pushes included, no bound", "[transports]") {
  HistoryRun run;
  run.mode = "async";
  run.examples = 3000;
  run.slow_delay = 0.005;
  const HistorySeen seen = RunHistoryJob(run);
  INFO(seen.report.ToString());
  CHECK(seen.report.total() == 0);
  CHECK(seen.report.pushes == kHistoryServers * run.examples);
  // No worker waited for the slow one.
  CHECK(seen.report.max_lead > 10);
}

TEST_CASE("sync between processes: a pull at clock c is of step c on every shard", "[transports]") {
  HistoryRun run;
  run.mode = "sync";
  // The last step is short.
  run.examples = 2001;
  const HistorySeen seen = RunHistoryJob(run);
  INFO(seen.report.ToString());
  CHECK(seen.report.total() == 0);
  CHECK(seen.report.pushes == kHistoryServers * run.examples);
}

}  // namespace
}  // namespace weir
