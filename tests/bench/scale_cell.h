#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// One job: workers that push and pull without computing anything, servers, a mode, a model.
struct ScaleCell {
  std::string model;     // in tables
  int64_t elements = 0;  // float32 of the model
  std::string mode;      // "sync", "bounded" (by 3), "async"
  int servers = 1, workers = 1;
  int64_t pushes = 0;  // at least, of all workers together; each makes some
  std::string transport = "auto";
  double limit_seconds = 120;  // of the start, of the work, and of the end
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ScaleCell, model, elements, mode, servers, workers, pushes, transport,
                                   limit_seconds)

struct ScaleResult {
  // From the time when all workers begin to join until each has its first weights.
  double start_seconds = 0;
  // From the last push's answer until all servers have exited, each with 0.
  double end_seconds = 0;
  int64_t pushes = 0;
  double pushes_per_second = 0;
  // The pushes of the worker with the fewest, over the mean.
  double fairness = 0;
  // The time of a push and the pull after it, as one exchange with all servers, with the wait for other
  // workers that the mode asks for.
  double p50_seconds = 0, p99_seconds = 0;
  // The growth of the fullest server's memory since before any worker was connected, divided by the workers:
  // to the time when all workers had their weights, and to the peak. Includes the model.
  double idle_bytes_per_worker = 0, peak_bytes_per_worker = 0;
  // CPU time of ps:0, which is also the coordinator, and the mean of the other servers; 0: there is no other
  // server.
  double ps0_cpu_us_per_push = 0, other_cpu_us_per_push = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ScaleResult, start_seconds, end_seconds, pushes, pushes_per_second,
                                   fairness, p50_seconds, p99_seconds, idle_bytes_per_worker,
                                   peak_bytes_per_worker, ps0_cpu_us_per_push, other_cpu_us_per_push)

// Runs the job. Each server is a process; the workers are clients in at most kScaleDrivers processes, each
// with a connection, a membership and a thread of its own. Returns an error if any part fails or takes longer
// than its limit; then no process of the job is left. Called from the process's only thread.
constexpr int kScaleDrivers = 8;
absl::StatusOr<ScaleResult> MeasureScale(const ScaleCell& cell);

}  // namespace weir::bench
