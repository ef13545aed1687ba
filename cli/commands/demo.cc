#include "cli/commands/demo.h"

#include <cstdio>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/up.h"
#include "cli/local_cluster/installation.h"
#include "cli/local_cluster/interrupts.h"
#include "cli/report/console.h"
#include "cli/report/format.h"
#include "cli/report/status_text.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

constexpr int kServers = 2;
constexpr int kWorkers = 4;
// The test accuracy that the digits job reaches in every mode.
constexpr double kTarget = 0.975;

// Each overrides the whole section, because a config's own staleness has no meaning in another mode.
constexpr const char* kModes[] = {
    R"(consistency={"mode": "sync"})",
    R"(consistency={"mode": "bounded", "staleness": 3})",
    R"(consistency={"mode": "async"})",
};

std::vector<std::string> Row(uint64_t seed, const JobSummary& s) {
  return {ModeName(s.mode, s.staleness_bound.value_or(0)),
          absl::StrCat(seed),
          s.test_accuracy.has_value() ? FormatPercent(*s.test_accuracy) : "-",
          FormatSeconds(s.total_seconds),
          FormatRate(s.examples_per_second),
          absl::StrCat(s.version_staleness_p50, "/", s.version_staleness_max),
          absl::StrCat(s.lead_p50, "/", s.lead_max)};
}

}  // namespace

int RunDemo(const DemoOptions& options) {
  Interrupts interrupts;
  Console console(Console::StandardError());
  absl::StatusOr<std::string> config = options.config;
  if (options.config.empty()) config = FindShipped("configs/digits.json");
  if (!config.ok()) {
    console.Line("error: ", Console::Color::kRed, config.status().message());
    return kExitConfig;
  }
  Table table(
      {"mode", "seed", "test accuracy", "time", "examples/s", "version staleness p50/max", "lead p50/max"});
  int exit_code = kExitOk;
  int runs = 0;
  int reached = 0;
  for (int run = 0; run < static_cast<int>(std::size(kModes)) * options.seeds && exit_code == kExitOk;
       ++run) {
    UpOptions up;
    up.config = *config;
    up.overrides = options.overrides;
    up.overrides.push_back(kModes[run / options.seeds]);
    up.seed = options.seed + run % options.seeds;
    up.ps = kServers;
    up.workers = kWorkers;
    up.device = options.device;
    up.bin_dir = options.bin_dir;
    up.verbose = options.verbose;
    const UpResult result = RunJob(up, console, interrupts);
    exit_code = result.exit_code;
    if (!result.summary.has_value()) break;
    ++runs;
    if (result.summary->test_accuracy.value_or(0) >= kTarget) ++reached;
    table.AddRow(Row(*up.seed, *result.summary));
  }
  if (runs > 0) {
    std::printf("%d servers, %d workers, %s\n\n%s", kServers, kWorkers, config->c_str(),
                table.ToString().c_str());
  }
  if (exit_code == kExitOk && options.config.empty()) {
    std::printf("\n%d of %d runs reach %s test accuracy\n", reached, runs, FormatPercent(kTarget).c_str());
    if (reached < runs) exit_code = kExitInternal;
  }
  std::fflush(stdout);
  return exit_code;
}

}  // namespace weir
