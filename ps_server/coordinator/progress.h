#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The speed and training loss of a job, from its workers' reports. For people only: no decision depends on
// them. Not thread-safe.
class ProgressMeter {
 public:
  // The loss is the mean over about this many of the last examples (an epoch).
  explicit ProgressMeter(uint64_t loss_window_examples) : loss_window_(loss_window_examples) {}

  // The newest report of one incarnation of a worker.
  void OnReport(uint64_t incarnation, const v1::WorkerReport& report);
  // The job's count of examples at this time.
  void Sample(absl::Time now, uint64_t examples);

  // nullopt: nothing was reported yet.
  std::optional<double> train_loss() const;
  // The mean over the job's last epoch, as far as it was reported. It is the same to the last bit whichever
  // worker computed which batch.
  std::optional<double> last_epoch_loss() const;
  // Over the last few seconds.
  double examples_per_second() const;

  // The totals of all reports so far, over all incarnations.
  uint64_t reported_examples() const { return totals_.examples; }
  double reported_loss_sum() const { return totals_.loss_sum; }

 private:
  struct Totals {
    uint64_t examples = 0;
    double loss_sum = 0;
  };
  const uint64_t loss_window_;
  std::map<uint64_t, v1::WorkerReport> newest_;  // by incarnation
  Totals totals_;
  std::deque<Totals> history_;  // rising; the first is the window's start
  std::deque<std::pair<absl::Time, uint64_t>> samples_;
};

}  // namespace weir
