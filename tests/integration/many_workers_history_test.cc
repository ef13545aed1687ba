// The histories of many workers of one host over the default transport: shared memory, and the streamed
// apply, where several pushes overtake each other all the time. The job must not stand still, and the
// definitions of the modes hold as they do for few workers (tests/history).
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/history/history_checker.h"
#include "tests/integration/bounded_run.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

// Pushes per worker.
constexpr uint64_t kPushes = 40;

HistoryRun ManyWorkers(const std::string& mode, uint32_t workers) {
  HistoryRun run;
  run.mode = mode;
  run.workers = workers;
  run.examples = kPushes * workers;
  return run;
}

void ExpectWhole(const HistoryRun& run, const HistorySeen& seen) {
  CHECK(seen.report.total() == 0);
  CHECK(seen.report.pushes == kHistoryServers * run.examples);
}

TEST_CASE("async with 16 and 32 workers: every push once, own pushes included") {
  for (const uint32_t workers : {16, 32}) {
    const HistoryRun run = ManyWorkers("async", workers);
    const HistorySeen seen = RunHistoryJob(run);
    INFO(workers << " workers: " << seen.report.ToString());
    ExpectWhole(run, seen);
  }
}

TEST_CASE("bounded(s) with 16 and 32 workers: every push once, the bound holds") {
  for (const uint32_t workers : {16, 32}) {
    for (const uint64_t staleness : {0, 3}) {
      HistoryRun run = ManyWorkers("bounded", workers);
      run.staleness = staleness;
      const HistorySeen seen = RunHistoryJob(run);
      INFO(workers << " workers, s = " << staleness << ": " << seen.report.ToString());
      ExpectWhole(run, seen);
      CHECK(seen.report.max_lead <= staleness + 1);
    }
  }
}

TEST_CASE("sync with 16 workers: a pull at clock c is of step c on every shard") {
  const HistoryRun run = ManyWorkers("sync", 16);
  const HistorySeen seen = RunHistoryJob(run);
  INFO(seen.report.ToString());
  ExpectWhole(run, seen);
}

}  // namespace
}  // namespace weir
