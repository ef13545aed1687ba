// ./dev chaos: jobs of real processes, one after another, under faults; prints the injected faults, the
// checks and the violations. For a job that fails it prints the command that runs its plan again and the
// folder of its logs.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/chaos/chaos.h"
#include "tests/chaos/scratch_folder.h"
#include "tests/chaos/small_disk.h"

namespace weir {
namespace {

struct Totals {
  uint64_t jobs = 0, with_tables = 0, kills = 0, operations = 0, violations = 0;
  double longest_standstill = 0;
  std::map<std::string, uint64_t> faults;
};

void RunJob(const ChaosPlan& plan, const ChaosPrograms& programs, const std::string& folder,
            const ChaosBits& bits, uint32_t workers, Totals* totals) {
  std::filesystem::create_directory(folder);
  const ChaosResult result = RunChaosJob(plan, programs, folder, bits);
  ++totals->jobs;
  totals->with_tables += plan.tables ? 1 : 0;
  totals->kills += result.kills;
  totals->operations += result.operations;
  totals->violations += result.violations.size();
  totals->longest_standstill = std::max(totals->longest_standstill, result.longest_standstill);
  uint64_t faults = 0;
  for (const auto& [fault, count] : result.faults) {
    totals->faults[fault] += count;
    faults += count;
  }
  std::printf("seed %llu: %s: %llu faults, %llu of them SIGKILLs, %llu operations, %.0f s\n",
              static_cast<unsigned long long>(plan.seed), plan.ToString().c_str(),
              static_cast<unsigned long long>(faults), static_cast<unsigned long long>(result.kills),
              static_cast<unsigned long long>(result.operations), result.seconds);
  for (const std::string& violation : result.violations) std::printf("  VIOLATION: %s\n", violation.c_str());
  if (result.violations.empty()) {
    std::filesystem::remove_all(folder);
  } else {
    std::printf("  logs: %s\n  again: ./dev chaos --jobs=1 --mode=%s --workers=%u --seed=%llu\n",
                folder.c_str(), plan.mode.c_str(), workers, static_cast<unsigned long long>(plan.seed));
  }
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  CLI::App app("Jobs of real processes under faults.");
  double minutes = 5;
  uint64_t seed = 1, jobs = 0, least_kills = 0;
  uint32_t workers = 8;
  std::string mode;
  std::vector<std::string> wanted;
  ChaosPrograms programs;
  app.add_option("--minutes", minutes, "Jobs are begun for so long.")->check(CLI::Range(0.0, 1e5));
  app.add_option("--jobs", jobs, "So many jobs instead.");
  app.add_option("--seed", seed, "Of the first job; each further one has the next.");
  app.add_option("--mode", mode, "Default: drawn.")->check(CLI::IsMember({"sync", "bounded", "async"}));
  app.add_option("--workers", workers, "At most so many a job; how many is drawn.")
      ->check(CLI::Range(kFewestWorkers, kMostWorkers));
  app.add_option("--least_kills", least_kills, "Fewer SIGKILLs in all are a failure.");
  app.add_option("--wanted", wanted, "Kinds of faults (how their names begin) of which none is a failure.");
  app.add_option("--ps_server", programs.ps_server, "The program.");
  app.add_option("--worker", programs.worker, "The program.");
  CLI11_PARSE(app, argc, argv);

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const absl::Status disk = SmallDisk::EnterNamespace();
  if (!disk.ok()) {
    std::printf("SKIPPED: full disks: this system gives no namespace to mount a small one in (%s)\n",
                std::string(disk.message()).c_str());
  }
  const std::string folder = MakeScratchFolder("weir-chaos");
  if (folder.empty()) {
    std::fprintf(stderr, "error: no folder can be made\n");
    return 1;
  }
  Totals totals;
  std::map<bool, ChaosBits> fault_free;  // of jobs in sync, with and without tables
  for (; jobs > 0 ? totals.jobs < jobs : elapsed() < 60 * minutes; ++seed) {
    const ChaosPlan plan = MakeChaosPlan(seed, mode, workers, disk.ok());
    if (plan.mode == "sync" && fault_free.count(plan.tables) == 0) {
      const std::string alone = absl::StrCat(folder, "/fault-free", plan.tables ? "-tables" : "");
      std::filesystem::create_directory(alone);
      const auto bits = FaultFreeBits(programs, alone, plan.tables);
      if (!bits.ok()) {
        std::fprintf(stderr, "error: the run without faults: %s; logs: %s\n",
                     std::string(bits.status().message()).c_str(), alone.c_str());
        return 1;
      }
      fault_free[plan.tables] = *bits;
    }
    RunJob(plan, programs, absl::StrCat(folder, "/seed-", seed),
           plan.mode == "sync" ? fault_free.at(plan.tables) : ChaosBits(), workers, &totals);
  }
  std::printf("jobs %llu, %llu with embedding tables, %.0f s\nfaults injected:\n",
              static_cast<unsigned long long>(totals.jobs),
              static_cast<unsigned long long>(totals.with_tables), elapsed());
  for (const auto& [fault, count] : totals.faults) {
    std::printf("  %-28s %llu\n", fault.c_str(), static_cast<unsigned long long>(count));
  }
  std::printf("SIGKILLs: %llu; the longest time without progress after a fault: %.1f s\n",
              static_cast<unsigned long long>(totals.kills), totals.longest_standstill);
  std::printf("operations checked: %llu\nviolations: %llu\n",
              static_cast<unsigned long long>(totals.operations),
              static_cast<unsigned long long>(totals.violations));
  if (totals.violations > 0) return 1;
  std::filesystem::remove_all(folder);
  if (totals.kills < least_kills) {
    std::printf("too few SIGKILLs: %llu were wanted\n", static_cast<unsigned long long>(least_kills));
    return 1;
  }
  for (const std::string& kind : wanted) {
    const auto fault = totals.faults.lower_bound(kind);
    if (fault != totals.faults.end() && absl::StartsWith(fault->first, kind)) continue;
    std::printf("no fault '%s' was injected\n", kind.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }
