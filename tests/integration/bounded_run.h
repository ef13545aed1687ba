#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/history/history_checker.h"
#include "tests/integration/processes.h"

// Many small steps with random delays, for the tests of what workers may see of each other.
namespace weir {

constexpr uint32_t kHistoryServers = 2;
constexpr uint32_t kHistoryWorkers = 4;

struct HistoryRun {
  std::string mode = "bounded";
  uint32_t workers = kHistoryWorkers;
  uint64_t staleness = 0;
  bool prefetch = false;
  // One example a push (in sync: a part).
  uint64_t examples = 1000;
  // Each worker delays each gradient by a random time, uniform in [0, this) seconds.
  double delay = 0.0002;
  // This time for worker 0.
  double slow_delay = 0.0002;

  // For every task.
  std::vector<std::string> Set() const;
  // For a worker, in addition.
  std::vector<std::string> WorkerArgs(uint32_t worker, const std::string& history_path) const;
  HistoryRules Rules() const;
};

struct HistorySeen {
  HistoryReport report;
  nlohmann::json summary;
  std::vector<HistoryEvent> events;
};
// Runs a job of server and worker processes to its end; each task exits with 0.
HistorySeen RunHistoryJob(const HistoryRun& run);

// Appends the history that a worker wrote. `cut`: the worker was killed.
void ReadHistoryFile(const std::string& path, bool cut, std::vector<HistoryEvent>* events);

}  // namespace weir
