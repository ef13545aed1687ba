#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weir {

// The changes that would make a job faster, by the summary of a run (docs/cli.md) and the model of a cluster.
// Speeds are in batches a second, of data.batch_size examples each.
struct Advice {
  struct Change {
    double gain = 1;      // the predicted speed over that of the job as it is
    std::string flag;     // of `weir up`: "--set data.batch_size=64", "--ps=4"
    std::string meaning;  // in words, with what it may cost
  };
  std::string job;  // "sync, 4 workers, 2 servers"
  double measured = 0;
  double predicted = 0;              // of the job as it is, by the model that was fitted to it
  double computing = 0;              // the workers' utilization
  double batch_seconds = 0;          // the median over workers
  double slowest = 1;                // the slowest worker's, over the median
  double jitter = 0;                 // of single batches, as ClusterModel has it
  std::vector<Change> changes;       // the largest gain first; none below 5 %
  std::vector<std::string> unknown;  // what the advice does not know
};

// `batch_seconds`: how long a worker computes for a batch, if the summary does not tell. InvalidArgument: the
// text is no summary of a job that has ended well, or lacks a number; says which one.
absl::StatusOr<Advice> Advise(const std::string& summary, std::optional<double> batch_seconds);

std::string AdviceText(const Advice& advice);
std::string AdviceJson(const Advice& advice);

}  // namespace weir
