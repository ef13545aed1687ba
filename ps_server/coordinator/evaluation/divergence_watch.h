#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Finds training that diverges (train.divergence), by the mean losses of windows of batches that all workers
// report. A window diverges when its mean is
//   above `factor` times the lowest mean of the job before the window began, or times kLeastLoss if that is
//   more: a loss that has come close to 0 may rise by any factor and still be small; and
//   above the mean of the job's first window.
// The job's history is of all workers since its beginning, including workers that have left.
//
// A window may begin long before its worker reports it, for example if the worker was stopped. Other workers
// may have made much progress meanwhile. So the window is compared with the job's lowest mean as ps:0 knew it
// before the worker reported its previous window, and with the worker's own windows since.
//
// A loss that is not finite counts in no window: one bad example need not end the job
// (consistency.on_nonfinite). If all losses of a worker over a window's length are not finite, training
// diverges.
//
// Belongs to the coordinator's queue.
class DivergenceWatch {
 public:
  static constexpr double kLeastLoss = 0.01;

  // `factor` 0: finds nothing.
  explicit DivergenceWatch(double factor) : factor_(factor) {}

  // Takes a report of one incarnation of a worker. Windows that it reported before do not count again. If
  // training diverges, returns a text that says how.
  std::optional<std::string> OnReport(uint64_t incarnation, const v1::WorkerReport& report);
  // The worker has left.
  void OnGone(uint64_t incarnation) { workers_.erase(incarnation); }

  // Takes the history from a checkpoint, and forgets the workers, who join again.
  void Restore(const v1::LossHistory& history);
  const v1::LossHistory& history() const { return history_; }

 private:
  struct Worker {
    // The number of its last window.
    uint64_t newest = 0;
    // Windows that together are too short to count.
    v1::LossWindow open;
    // `seen`: the job's lowest mean when the worker reported last. `before`: the mean with which its next
    // window is compared. Not set: the job had none.
    std::optional<double> seen, before;
  };

  // Judges a window that has enough batches. If training diverges, returns a text that says how.
  std::optional<std::string> Judge(const v1::LossWindow& window, Worker& worker);

  const double factor_;
  v1::LossHistory history_;
  // By incarnation.
  std::map<uint64_t, Worker> workers_;
};

}  // namespace weir
