// `./dev bench scale`: how costs grow with workers and servers, in each mode. See docs/benchmarks.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "bench/server_process.h"
#include "common/program/command_line.h"
#include "common/system/process.h"
#include "common/telemetry/grpc_process.h"
#include "tests/bench/scale_cell.h"

namespace weir::bench {
namespace {

using nlohmann::json;

constexpr double kMiB = 1 << 20;

// The pushes of a cell: `pushes_each` for each worker, with the total within `least_pushes` and
// `most_pushes`, but never fewer than `least_each` for each worker. The fewer pushes each worker makes, the
// more often the coordinator is asked for work.
struct ScaleModel {
  const char* name;
  int64_t elements;
  int64_t pushes_each, least_pushes, most_pushes, least_each;
};
// With the tiny model each worker makes 62 pushes or more: with fewer, each push would be a range of its own.
constexpr ScaleModel kModels[] = {{"tiny", 1024, 250, 4000, 16000, 62}, {"4MB", 1 << 20, 8, 300, 2048, 4}};

struct Options {
  std::vector<std::string> models = {"tiny", "4MB"}, modes = {"sync", "bounded", "async"};
  std::vector<int> servers = {1, 2, 4, 8}, workers = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  std::string transport = "auto", json_file, ps_server;
  std::optional<int64_t> pushes;  // instead of the model's
  double limit_seconds = 120;     // of each phase of a cell
};

// Measures and prints a cell. The object has an "error" if it failed.
json Measure(const ScaleCell& cell) {
  const absl::StatusOr<ScaleResult> result = MeasureScale(cell);
  std::printf("%-5s %-8s %7d %7d ", cell.model.c_str(), cell.mode.c_str(), cell.servers, cell.workers);
  json measured = cell;
  if (!result.ok()) {
    measured["error"] = std::string(result.status().message());
    std::printf("failed: %s\n", std::string(result.status().message()).c_str());
  } else {
    measured.update(json(*result));
    const std::string coordinator =
        cell.servers > 1
            ? absl::StrFormat("%.0f", result->ps0_cpu_us_per_push - result->other_cpu_us_per_push)
            : "-";
    std::printf("%8.2f %8.2f %9.0f %8.2f %9.2f %9.2f %9.3f %9.3f %9.0f %11s\n", result->start_seconds,
                result->end_seconds, result->pushes_per_second, result->fairness, result->p50_seconds * 1e3,
                result->p99_seconds * 1e3, result->idle_bytes_per_worker / kMiB,
                result->peak_bytes_per_worker / kMiB, result->ps0_cpu_us_per_push, coordinator.c_str());
  }
  std::fflush(stdout);
  return measured;
}

int Run(const Options& options) {
  std::printf("%-5s %-8s %7s %7s %8s %8s %9s %8s %9s %9s %9s %9s %9s %11s\n", "model", "mode", "servers",
              "workers", "start s", "end s", "pushes/s", "fairness", "p50 ms", "p99 ms", "idle MiB",
              "peak MiB", "ps:0 us", "coordinator");
  json cells = json::array();
  for (const ScaleModel& model : kModels) {
    if (!absl::c_linear_search(options.models, model.name)) continue;
    for (const std::string& mode : options.modes) {
      for (int servers : options.servers) {
        for (int workers : options.workers) {
          const int64_t pushes =
              std::max(model.least_each * workers,
                       std::clamp(model.pushes_each * workers, model.least_pushes, model.most_pushes));
          cells.push_back(
              Measure({model.name, model.elements, mode, servers, workers, options.pushes.value_or(pushes),
                       options.transport, options.limit_seconds}));
        }
      }
    }
  }
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << json{{"cells", cells}}.dump(2) << "\n";
    file.close();
    if (!file) {
      std::fprintf(stderr, "scale_bench: --json=%s cannot be written\n", options.json_file.c_str());
      return 1;
    }
  }
  return absl::c_any_of(cells, [](const json& cell) { return cell.contains("error"); }) ? 1 : 0;
}

int Main(int argc, char** argv) {
  CLI::App app("How costs grow with workers", "./dev bench scale");
  Options options;
  app.add_option("--models", options.models, "tiny, 4MB")
      ->delimiter(',')
      ->check(CLI::IsMember({"tiny", "4MB"}))
      ->capture_default_str();
  app.add_option("--modes", options.modes, "sync, bounded, async")
      ->delimiter(',')
      ->check(CLI::IsMember({"sync", "bounded", "async"}))
      ->capture_default_str();
  app.add_option("--servers", options.servers, "How many, in turn")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--workers", options.workers, "How many, in turn")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--transport", options.transport, "The config's wire.transport")
      ->check(CLI::IsMember({"auto", "shared_memory", "unix", "tcp"}))
      ->capture_default_str();
  app.add_option("--pushes", options.pushes, "Pushes of a cell, over all workers, at least")
      ->check(CLI::PositiveNumber);
  app.add_option("--limit_seconds", options.limit_seconds,
                 "How long a job may take to start, to work, and to end")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  app.add_option("--json", options.json_file, "Also writes all numbers there")->type_name("FILE");
  app.add_option("--ps_server", options.ps_server, "The program ps_server")->required()->type_name("FILE");
  if (const std::optional<int> exit = ReadCommandLine(app, argc, argv)) return *exit;
  ServerProcess::SetProgram(options.ps_server);
  return Run(options);
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  weir::PrepareGrpc();
  return weir::bench::Main(argc, argv);
}
