#include "bench/scale.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/race.h"

namespace weir::bench {
namespace {

constexpr double kMiB = 1 << 20;

template <typename T, typename U>
bool Has(const std::vector<T>& values, const U& value) {
  return std::count(values.begin(), values.end(), value) > 0;
}

// The throughputs of the row's cell with `workers` workers, in the order of measurement; 0: failed.
std::vector<double> Rates(const std::vector<ScaleRow>& rows, const ScaleRow& of, int workers) {
  std::vector<double> rates;
  for (const ScaleRow& row : rows) {
    if (row.cell.model != of.cell.model || row.cell.mode != of.cell.mode ||
        row.cell.servers != of.cell.servers || row.cell.workers != workers) {
      continue;
    }
    rates.push_back(row.status.ok() ? row.result.pushes_per_second : 0);
  }
  return rates;
}

void Print(const ScaleRow& row) {
  const ScaleCell& cell = row.cell;
  std::printf("%-5s %-8s %7d %7d ", cell.model.c_str(), cell.mode.c_str(), cell.servers, cell.workers);
  if (!row.status.ok()) {
    std::printf("failed: %s\n", std::string(row.status.message()).c_str());
  } else {
    const ScaleResult& r = row.result;
    const std::string coordinator =
        cell.servers > 1 ? absl::StrFormat("%.0f", r.ps0_cpu_us_per_push - r.other_cpu_us_per_push) : "-";
    std::printf("%8.2f %8.2f %9.0f %8.2f %9.2f %9.2f %9.3f %9.3f %9.0f %11s\n", r.start_seconds,
                r.end_seconds, r.pushes_per_second, r.fairness, r.p50_seconds * 1e3, r.p99_seconds * 1e3,
                r.idle_bytes_per_worker / kMiB, r.peak_bytes_per_worker / kMiB, r.ps0_cpu_us_per_push,
                coordinator.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

std::vector<ScaleRow> MeasureScales(const ScaleOptions& options) {
  std::printf("%-5s %-8s %7s %7s %8s %8s %9s %8s %9s %9s %9s %9s %9s %11s\n", "model", "mode", "servers",
              "workers", "start s", "end s", "pushes/s", "fairness", "p50 ms", "p99 ms", "idle MiB",
              "peak MiB", "ps:0 us", "coordinator");
  std::vector<ScaleRow> rows;
  const auto measure = [&](const ScaleModel& model, const std::string& mode, int servers, int workers,
                           bool again) {
    ScaleRow& row = rows.emplace_back();
    const int64_t pushes = options.pushes.value_or(
        std::clamp(model.pushes_each * workers, model.least_pushes, model.most_pushes));
    row.cell = {model.name,
                model.elements,
                mode,
                servers,
                workers,
                std::max<int64_t>(pushes, (options.pushes.has_value() ? 4 : model.least_each) * workers),
                options.transport,
                options.limit_seconds};
    row.again = again;
    auto result = MeasureScale(row.cell);
    row.status = result.status();
    if (result.ok()) row.result = *result;
    Print(row);
  };
  for (const ScaleModel& model : kScaleModels) {
    if (!Has(options.models, model.name)) continue;
    for (const std::string& mode : options.modes) {
      for (int servers : options.servers) {
        for (int workers : options.workers) measure(model, mode, servers, workers, false);
        if (mode != "async" || !Has(options.workers, kFewWorkers) || !Has(options.workers, kManyWorkers)) {
          continue;
        }
        for (int pair = 1; pair < options.pairs; ++pair) {
          for (int workers : {kFewWorkers, kManyWorkers}) measure(model, mode, servers, workers, true);
        }
      }
    }
  }
  return rows;
}

std::vector<ScaleTarget> JudgeScale(const std::vector<ScaleRow>& rows) {
  std::vector<ScaleTarget> targets;
  double idle = -1;
  for (const ScaleRow& row : rows) {
    const ScaleCell& cell = row.cell;
    if (row.status.ok() && cell.model == "tiny" && cell.workers >= 16) {
      idle = std::max(idle, row.result.idle_bytes_per_worker / kMiB);
    }
    if (cell.mode == "sync" && cell.workers == 256) {
      targets.push_back(
          {absl::StrCat("sync, ", cell.model, ", ", cell.servers, " servers, 256 workers: completes"),
           row.status.ok() ? 1.0 : 0.0,
           1,
           {},
           true,
           ""});
    }
    if (row.again || cell.mode != "async" || cell.workers != kManyWorkers) continue;
    const std::vector<double> few = Rates(rows, row, kFewWorkers), many = Rates(rows, row, kManyWorkers);
    ScaleTarget target = {absl::StrCat("async, ", cell.model, ", ", cell.servers, " servers: pushes/s of ",
                                       kManyWorkers, " workers / of ", kFewWorkers),
                          0,
                          0.8,
                          {},
                          true,
                          "x"};
    for (size_t pair = 0; pair < std::min(few.size(), many.size()); ++pair) {
      if (few[pair] > 0) target.samples.push_back(many[pair] / few[pair]);
    }
    if (target.samples.empty()) continue;
    target.value = Median(target.samples);
    targets.push_back(std::move(target));
  }
  if (idle >= 0)
    targets.push_back({"an idle worker's memory on a server, the worst cell", idle, 1, {}, false, "MiB"});
  return targets;
}

}  // namespace weir::bench
