#include "tests/integration/bounded_run.h"

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"

namespace weir {

std::vector<std::string> HistoryRun::Set() const {
  std::vector<std::string> set = {R"(model.layers=[{"type": "flatten"}, {"type": "dense", "units": 10}])",
                                  R"(optimizer={"type": "sgd", "learning_rate": 0.001})",
                                  absl::StrCat("cluster.workers=", workers),
                                  absl::StrCat("train={\"examples\": ", examples, "}"),
                                  "data.batch_size=1",
                                  absl::StrCat("consistency.mode=", mode)};
  if (mode == "bounded") set.push_back(absl::StrCat("consistency.staleness=", staleness));
  if (prefetch) set.push_back("consistency.prefetch=true");
  return set;
}

std::vector<std::string> HistoryRun::WorkerArgs(uint32_t worker, const std::string& history_path) const {
  return {"--history=" + history_path, "--set",
          absl::StrCat("debug.worker_delay=", worker == 0 ? slow_delay : delay)};
}

HistoryRules HistoryRun::Rules() const {
  HistoryRules rules;
  rules.mode = mode == "sync"      ? HistoryRules::Mode::kSync
               : mode == "bounded" ? HistoryRules::Mode::kBounded
                                   : HistoryRules::Mode::kAsync;
  rules.staleness = staleness;
  rules.prefetch = prefetch;
  rules.parts = workers;
  return rules;
}

HistorySeen RunHistoryJob(const HistoryRun& run) {
  TestJob job({.ps = kHistoryServers, .workers = run.workers, .set = run.Set()});
  std::vector<std::string> logs;
  for (uint32_t i = 0; i < kHistoryServers; ++i) job.Start(absl::StrCat("ps:", i));
  for (uint32_t i = 0; i < run.workers; ++i) {
    logs.push_back(job.folder().path(absl::StrCat("worker-", i, ".history")));
    job.Start(absl::StrCat("worker:", i), run.WorkerArgs(i, logs.back()));
  }
  job.ExpectAllExit(0);
  HistorySeen seen;
  for (const std::string& log : logs) ReadHistoryFile(log, /*cut=*/false, &seen.events);
  seen.report = CheckHistory(seen.events, run.Rules());
  seen.summary = job.Summary();
  return seen;
}

void ReadHistoryFile(const std::string& path, bool cut, std::vector<HistoryEvent>* events) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const absl::Status status = ReadHistory(name, ReadWholeFile(path), cut, events);
  INFO(status);
  REQUIRE(status.ok());
}

}  // namespace weir
