// `weir demo`: one small job in each of the three modes, with 2 servers and 4 workers, as one table.
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/up.h"
#include "cli/installation/installation.h"
#include "cli/report/console.h"
#include "cli/report/format.h"
#include "cli/report/status_text.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

struct DemoOptions {
  UpOptions up;  // of every run; `config`: "" for configs/digits.json
  uint64_t seed = 1;
  int seeds = 1;  // runs seed, seed + 1, ...
};

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

int RunDemo(const DemoOptions& options) {
  Interrupts interrupts;
  Console console(Console::StandardError());
  const bool shipped = options.up.cluster.config.empty();
  UpOptions first = options.up;
  first.cluster.ps = kServers;
  first.workers = kWorkers;
  if (shipped) {
    absl::StatusOr<std::string> config = FindShipped("configs/digits.json");
    if (!config.ok()) {
      console.Error(config.status().message());
      return kExitConfig;
    }
    first.cluster.config = *std::move(config);
  }
  Table table(
      {"mode", "seed", "test accuracy", "time", "examples/s", "version staleness p50/max", "lead p50/max"});
  int exit_code = kExitOk;
  int runs = 0;
  int reached = 0;
  for (int run = 0; run < static_cast<int>(std::size(kModes)) * options.seeds && exit_code == kExitOk;
       ++run) {
    UpOptions up = first;
    up.cluster.overrides.push_back(kModes[run / options.seeds]);
    up.seed = options.seed + run % options.seeds;
    const UpResult result = RunJob(up, console, interrupts);
    exit_code = result.exit_code;
    if (!result.summary.has_value()) break;
    ++runs;
    if (result.summary->test_accuracy.value_or(0) >= kTarget) ++reached;
    table.AddRow(Row(*up.seed, *result.summary));
  }
  if (runs > 0) {
    Print(absl::StrCat(kServers, " servers, ", kWorkers, " workers, ", first.cluster.config, "\n\n",
                       table.ToString()));
  }
  if (exit_code != kExitOk || !shipped) return exit_code;
  Print(
      absl::StrCat("\n", reached, " of ", runs, " runs reach ", FormatPercent(kTarget), " test accuracy\n"));
  return reached < runs ? kExitInternal : kExitOk;
}

constexpr const char* kDemoExamples = R"(Examples:
  weir demo
  weir demo --seed=1 --seeds=5)";

}  // namespace

void AddDemoCommand(Commands& commands) {
  const auto options = std::make_shared<DemoOptions>();
  CLI::App* command = commands.Add(
      "demo", "Train digits with 2 servers and 4 workers in each of the three modes", kDemoExamples);
  command->add_option("--seed", options->seed, "The first seed")->check(WholeNumber())->capture_default_str();
  AddCount(command, "--seeds", &options->seeds, 1000, "How many seeds, one after another");
  AddNamed(command, "--config", &options->up.cluster.config, "FILE",
           "Another job (default: configs/digits.json)");
  AddRunFlags(command, &options->up);
  commands.OnRun(command, [options] { return RunDemo(*options); });
}

}  // namespace weir
