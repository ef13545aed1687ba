#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/loss_curve.h"
#include "ps_server/coordinator/progress.h"

namespace weir {

// How long a job has trained since its coordinator was started, how fast, and how its loss falls. For people
// only: no decision depends on it.
//
// Belongs to the coordinator's queue.
class JobMeter {
 public:
  // The size of the training set, as far as it is known. 0: it is not known any more.
  void SetTrainExamples(uint64_t train_examples);

  // Training starts or goes on; the first call sets the time from which the speed counts. `examples`: those
  // that were done before.
  void OnStart(absl::Time now, uint64_t examples);
  // Training has ended. Only the first call counts, until OnMore().
  void OnEnd(absl::Time now);
  // There was nothing left to train when training started.
  void EndAtStart() { ended_ = started_; }
  // The job is not at its end after all.
  void OnMore() { ended_.reset(); }

  // The newest report of one incarnation of a worker.
  void OnReport(uint64_t incarnation, const v1::WorkerReport& report);
  // Shard 0 has just said how many of the job's examples are done. `running`: training is under way.
  void Sample(absl::Time now, uint64_t examples, bool running);

  std::vector<v1::LossPoint> LossCurve() const { return loss_curve_.Points(); }
  // Sets `seconds`, `examples_per_second` and `train_loss`; `state` and `examples` are set. `whole`: the loss
  // is that of the last epoch alone, whenever the workers have reported.
  void Describe(absl::Time now, bool whole, v1::ClusterStatus* status) const;

 private:
  std::optional<absl::Time> started_, ended_;
  uint64_t examples_before_ = 0;
  // Absent until the size of the training set is known.
  std::optional<ProgressMeter> progress_;
  weir::LossCurve loss_curve_;
};

}  // namespace weir
