#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"

namespace weir {

// The share of the last ten seconds or so in which a worker computed, from its reports. For people and
// autoscalers: no decision of the job depends on it. Not thread-safe.
class ComputeShare {
 public:
  // WorkerReport.compute_seconds of a report that came now.
  void OnReport(absl::Time now, double compute_seconds);
  // In [0, 1], whatever the worker reports. nullopt: fewer than two reports have come.
  std::optional<double> Value() const;

 private:
  // By rising time.
  std::deque<std::pair<absl::Time, double>> samples_;
};

}  // namespace weir
