// ./dev chaos --sim: runs seeds of the simulation and prints the injected faults, the checks and the
// violations. For a seed that fails it prints the command that replays it.
#include <chrono>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "common/telemetry/logging.h"
#include "tests/simulation/simulation.h"

namespace weir {
namespace {

struct Totals {
  uint64_t seeds = 0, violations = 0, operations = 0, messages = 0, failed = 0;
  absl::Duration elapsed;
  FaultCounts faults;
};

void PrintViolations(uint64_t seed, const Plan& plan, bool tables, const SimulationResult& result) {
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), plan.ToString().c_str());
  for (const Violation& violation : result.violations) {
    std::printf("  %s: %s\n", Name(violation.invariant), violation.what.c_str());
  }
  std::printf("  replay: ./dev chaos --sim --first-seed=%llu --seeds=1%s --trace\n",
              static_cast<unsigned long long>(seed), tables ? " --tables" : "");
}

void RunSeed(uint64_t seed, bool tables, bool trace, Totals* totals) {
  const Plan plan = MakePlan(seed, tables);
  if (trace) std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), plan.ToString().c_str());
  const SimulationResult result = RunSimulation(plan, nullptr, trace);
  ++totals->seeds;
  totals->violations += result.violations.size();
  totals->operations += result.operations;
  totals->messages += result.messages;
  totals->failed += result.failed ? 1 : 0;
  totals->elapsed += result.elapsed;
  for (const auto& [kind, count] : result.faults) totals->faults[kind] += count;
  if (!result.violations.empty()) PrintViolations(seed, plan, tables, result);
  if (trace) std::printf("trace hash %016llx\n", static_cast<unsigned long long>(result.trace_hash));
}

int Main(int argc, char** argv) {
  CLI::App app("Simulated clusters under faults; one seed, one run.");
  uint64_t first = 1, seeds = 1000;
  bool tables = false, trace = false;
  app.add_option("--first-seed", first, "The first seed.");
  app.add_option("--seeds", seeds, "So many, one after another.");
  app.add_flag("--tables", tables, "Every job has an embedding table; otherwise some have.");
  app.add_flag("--trace", trace, "Print every event and the servers' own log.");
  CLI11_PARSE(app, argc, argv);
  LoggingOptions logging;
  logging.level = trace ? LogLevel::kDebug : LogLevel::kError;
  InitLogging(logging);

  Totals totals;
  const auto started = std::chrono::steady_clock::now();
  for (uint64_t seed = first; seed < first + seeds; ++seed) RunSeed(seed, tables, trace, &totals);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;

  std::printf("seeds %llu (%llu to %llu), %.1f s, %.0f seeds/s; %.0f s of virtual time, %llu messages\n",
              static_cast<unsigned long long>(totals.seeds), static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + seeds - 1), took.count(),
              static_cast<double>(totals.seeds) / took.count(), absl::ToDoubleSeconds(totals.elapsed),
              static_cast<unsigned long long>(totals.messages));
  std::printf("faults injected:\n");
  for (const auto& [kind, count] : totals.faults) {
    std::printf("  %-28s %llu\n", kind.c_str(), static_cast<unsigned long long>(count));
  }
  std::printf("jobs that failed as they must (a lost server without checkpoints): %llu\n",
              static_cast<unsigned long long>(totals.failed));
  std::printf("operations checked: %llu\n", static_cast<unsigned long long>(totals.operations));
  std::printf("violations: %llu\n", static_cast<unsigned long long>(totals.violations));
  return totals.violations == 0 ? 0 : 1;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }
