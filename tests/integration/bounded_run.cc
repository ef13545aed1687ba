#include "tests/integration/bounded_run.h"

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"

namespace weir {

std::vector<std::string> HistoryRun::Set() const {
  std::vector<std::string> set = {R"(model.layers=[{"type": "flatten"}, {"type": "dense", "units": 10}])",
                                  R"(optimizer={"type": "sgd", "learning_rate": 0.001})",
                                  absl::StrCat("cluster.workers=", kHistoryWorkers),
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
  rules.parts = kHistoryWorkers;
  return rules;
}

void ReadHistoryFile(const std::string& path, bool cut, std::vector<HistoryEvent>* events) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const absl::Status status = ReadHistory(name, ReadWholeFile(path), cut, events);
  INFO(status);
  REQUIRE(status.ok());
}

}  // namespace weir
