#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/predict/cluster_model.h"

namespace weir {

// Predictions of one job for several clusters and modes.
struct SweepRow {
  std::string mode;  // "sync", "bounded(3)", "async", "sync, 100 local steps"
  uint32_t workers = 0, servers = 0;
  ClusterPrediction prediction;
};

// For people: a row for each prediction.
std::string SweepText(const std::vector<SweepRow>& rows, uint32_t batch_size);
// {"rows": [{"mode", "workers", "servers", "steps_per_second", ...}]}
std::string SweepJson(const std::vector<SweepRow>& rows, uint32_t batch_size);
// A plot of batches a second over workers, both axes logarithmic, as SVG: a line for each mode and number of
// servers.
std::string SweepSvg(const std::vector<SweepRow>& rows);

}  // namespace weir
