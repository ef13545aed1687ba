#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/scale_cell.h"

namespace weir::bench {

// The pushes of a cell: `pushes_each` for each worker, with the total within `least_pushes` and
// `most_pushes`, but never fewer than `least_each` for each worker. The fewer pushes each worker makes, the
// more often the coordinator is asked for work.
struct ScaleModel {
  const char* name;
  int64_t elements;
  int64_t pushes_each, least_pushes, most_pushes, least_each;
};
// Of the tiny model each worker has 62 pushes or more: with fewer, a push has a range of its own.
constexpr ScaleModel kScaleModels[] = {{"tiny", 1024, 250, 4000, 16000, 62},
                                       {"4MB", 1 << 20, 8, 300, 2048, 4}};
constexpr const char* kScaleModes[] = {"sync", "bounded", "async"};

struct ScaleOptions {
  std::vector<std::string> models = {"tiny", "4MB"};
  std::vector<std::string> modes = {"sync", "bounded", "async"};
  std::vector<int> servers = {1, 2, 4, 8};
  std::vector<int> workers = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  std::string transport = "auto";
  std::optional<int64_t> pushes;  // instead of the model's
  double limit_seconds = 120;     // of each phase of a cell
  // How often kFewWorkers and kManyWorkers in async take turns; the first turn is that of the table.
  int pairs = 5;
};

// The throughput in async is compared between these numbers of workers.
constexpr int kFewWorkers = 8, kManyWorkers = 64;

struct ScaleRow {
  ScaleCell cell;
  absl::Status status;
  ScaleResult result;  // if status is OK
  bool again = false;  // a cell that was measured before
};

// How costs may grow; judged if the rows have the cells for it.
struct ScaleTarget {
  std::string what;
  double value = 0, bound = 0;  // the median of the samples, if there are any
  std::vector<double> samples;
  bool at_least = true;
  std::string unit;
  bool met() const { return at_least ? value >= bound : value <= bound; }
};

// Measures all cells, and prints each as a line of a table when it is done. A cell that fails is a row, too.
// Cells that are compared are measured `pairs` times in all.
std::vector<ScaleRow> MeasureScales(const ScaleOptions& options);

// Judges the memory of an idle worker on a server, from 16 workers on and with the tiny model, so that it is
// no share of what a server has anyway; 256 workers in sync; and the throughput of 64 asynchronous workers
// over that of 8, pair by pair.
std::vector<ScaleTarget> JudgeScale(const std::vector<ScaleRow>& rows);

// The rows, without repeated cells, as an SVG: a panel for each figure and number of servers, workers from
// left to right, a line for each mode and model.
std::string PlotScale(const std::vector<ScaleRow>& rows);

}  // namespace weir::bench
