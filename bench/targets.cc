#include "bench/targets.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/race.h"
#include "bench/weir_contestant.h"
#include "common/system/subprocess.h"

namespace weir::bench {
namespace {

absl::StatusOr<std::vector<Target>> ApplyTargets(const TargetOptions& options) {
  namespace fs = std::filesystem;
  const fs::path json = fs::temp_directory_path() / absl::StrCat("weir-apply-bench-", getpid(), ".json");
  Subprocess::Options process;
  process.args = {options.apply_bench, "--json=" + json.string(),
                  absl::StrCat("--rounds=", options.quick ? 3 : 15)};
  const auto result = RunCommand(std::move(process), std::chrono::minutes(5));
  if (!result.ok()) return result.status();
  const nlohmann::json table = nlohmann::json::parse(std::ifstream(json), nullptr, false);
  std::error_code ignored;
  fs::remove(json, ignored);
  if (!result->exit.ok() || !table.is_object()) {
    return absl::InternalError(
        absl::StrCat(options.apply_bench, ": ", result->exit.ToString(), "\n", result->output));
  }
  int threads = 0;
  for (const auto& row : table["rows"]) threads = std::max(threads, row["threads"].get<int>());
  std::vector<Target> targets;
  for (const auto& row : table["rows"]) {
    if (row["threads"] != threads || row["data"] != "memory" || !row.contains("of_limit")) continue;
    targets.push_back(
        MakeTarget("apply",
                   absl::StrCat("apply kernel / streaming limit: ", row["what"].get<std::string>(), ", ",
                                row["form"].get<std::string>(), ", ", threads, " threads"),
                   true, 0.80, "x", {row["of_limit"].get<double>()}));
  }
  if (targets.empty()) return absl::InternalError(options.apply_bench + " gave no numbers");
  return targets;
}

}  // namespace

const std::vector<std::string> kTargetRows = {"tcp", "protobuf", "shm",    "2x2",    "bf16",       "1kb",
                                              "cpu", "apply",    "memory", "faults", "stragglers", "tls"};

Target MakeTarget(std::string row, std::string work, bool at_least, double bound, std::string unit,
                  std::vector<double> samples) {
  Target target{std::move(row), std::move(work), at_least, bound, std::move(unit), Median(samples), {}, {}};
  target.samples = std::move(samples);
  return target;
}

Target FailedTarget(std::string row, std::string work, bool at_least, double bound, std::string unit,
                    absl::Status status) {
  return {std::move(row), std::move(work), at_least, bound, std::move(unit), 0, {}, std::move(status)};
}

bool TargetOptions::Wants(const std::string& row) const {
  return rows.empty() || std::find(rows.begin(), rows.end(), row) != rows.end();
}

void ShowProgress(const std::string& what) { std::fprintf(stderr, "measuring %s ...\n", what.c_str()); }

void MeasureApply(const TargetOptions& options, Report* report) {
  if (!options.Wants("apply")) return;
  ShowProgress("the apply kernels");
  absl::StatusOr<std::vector<Target>> targets = ApplyTargets(options);
  if (targets.ok()) {
    for (Target& target : *targets) report->targets.push_back(std::move(target));
  } else {
    report->targets.push_back(
        FailedTarget("apply", "apply kernels / streaming limit", true, 0.80, "x", targets.status()));
  }
}

void MeasureMemory(const TargetOptions& options, ServerHost* host, Report* report) {
  if (!options.Wants("memory")) return;
  struct Case {
    const char *optimizer, *apply;
    double bound;
  };
  for (const Case& c :
       {Case{"sgd", "streamed", 2.3}, Case{"momentum", "streamed", 4.3}, Case{"adam", "streamed", 6.3},
        Case{"sgd", "staged", 2.3}, Case{"momentum", "staged", 3.4}, Case{"adam", "staged", 4.5}}) {
    Contestant weir = Weir("weir", R"({"wire": {"transport": "tcp"}})");
    weir.config = absl::StrCat(R"({"wire": {"transport": "tcp"}, "server": {"apply": ")", c.apply, R"("}})");
    weir.elements = options.quick ? 10'000'000 : 100'000'000;
    weir.optimizer = c.optimizer;
    const std::string work = absl::StrCat("server memory / bytes of weights: ", c.optimizer, ", ", c.apply);
    ShowProgress(work);
    const absl::StatusOr<double> ratio = [&]() -> absl::StatusOr<double> {
      const auto contest = Contest::Start(weir, host);
      if (!contest.ok()) return contest.status();
      const auto run = (*contest)->Run(5);
      if (!run.ok()) return run.status();
      const auto usage = (*contest)->ServerUsage();
      if (!usage.ok()) return usage.status();
      return static_cast<double>(usage->peak_resident_bytes) /
             static_cast<double>(weir.elements * sizeof(float));
    }();
    report->targets.push_back(ratio.ok() ? MakeTarget("memory", work, false, c.bound, "x", {*ratio})
                                         : FailedTarget("memory", work, false, c.bound, "x", ratio.status()));
  }
}

void MeasureStragglers(const TargetOptions& options, ServerHost* host, Report* report) {
  if (!options.Wants("stragglers")) return;
  ShowProgress("async workers beside stragglers");
  Contestant without = Weir("two workers", R"({"wire": {"transport": "tcp"}})");
  without.elements = options.quick ? 250'000 : 1'000'000;
  without.clients = 2;
  Contestant with = without;
  with.name = "with a slow and a stopped one";
  with.clients = 4;
  constexpr int kSlow = 2, kStopped = 3;
  with.detours[kSlow].bytes_per_second = 1e6;
  with.detours[kStopped].stop_after = with.elements * sizeof(float) / 2;
  const std::vector<int> others = {0, 1};
  const int slow_steps = options.quick ? 1 : 3, steps = options.quick ? 20 : 150;

  std::vector<double> ratios;
  int64_t lost = 0;
  const absl::Status status = [&]() -> absl::Status {
    const auto a = Contest::Start(without, host);
    if (!a.ok()) return a.status();
    const auto b = Contest::Start(with, host);
    if (!b.ok()) return b.status();
    int64_t acknowledged = slow_steps;
    // Both stragglers are at work all the time. The stopped one never answers.
    for (const auto& [client, n] : {std::pair{kSlow, slow_steps}, {kStopped, 1}}) {
      absl::Status sent = (*b)->client(client).control().Send({{"steps", n}});
      if (!sent.ok()) return sent;
    }
    for (int pair = -1; pair < options.pairs; ++pair) {
      const auto alone = (*a)->Run(steps, others), beside = (*b)->Run(steps, others);
      if (!alone.ok()) return alone.status();
      if (!beside.ok()) return beside.status();
      acknowledged += 2 * steps;
      if (pair >= 0) ratios.push_back(alone->wall_seconds / beside->wall_seconds);
    }
    const auto slow = (*b)->client(kSlow).control().Receive();
    if (!slow.ok()) return slow.status();
    const auto last = (*b)->Run(1, {0});
    if (!last.ok()) return last.status();
    // Each acknowledged update has made one version, and nothing else has.
    lost = acknowledged + 1 - static_cast<int64_t>(last->versions[0]);
    return absl::OkStatus();
  }();
  const std::string throughput =
      "async, one worker at 1 MB/s and one stopped in a push: others' throughput / without them";
  const std::string updates = "the same: acknowledged updates that are not in the weights, or twice";
  if (!status.ok()) {
    report->targets.push_back(FailedTarget("stragglers", throughput, true, 0.95, "x", status));
    report->targets.push_back(FailedTarget("stragglers", updates, false, 0, "", status));
    return;
  }
  report->targets.push_back(MakeTarget("stragglers", throughput, true, 0.95, "x", ratios));
  report->targets.push_back(
      MakeTarget("stragglers", updates, false, 0, "", {static_cast<double>(std::abs(lost))}));
}

Report MeasureTargets(const TargetOptions& options, ServerHost* host) {
  Report report;
  MeasureRaces(options, host, &report);
  MeasureApply(options, &report);
  MeasureMemory(options, host, &report);
  MeasureStragglers(options, host, &report);
  return report;
}

}  // namespace weir::bench
