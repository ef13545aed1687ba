#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The curve of the training loss, for people: no decision depends on it. The curve of a job of any length has
// at most kMostPoints points. When there are more, every two become one. Not thread-safe.
class LossCurve {
 public:
  static constexpr size_t kMostPoints = 200;

  // `examples`: the job's examples so far. If the job goes back, so does the curve. `reported`, `loss_sum`:
  // the totals that workers have reported since ps:0 was started.
  void Sample(uint64_t examples, uint64_t reported, double loss_sum);

  std::vector<v1::LossPoint> Points() const;

 private:
  // The reports between the previous point and this one.
  struct Piece {
    uint64_t examples = 0;  // the job's, at the end of the piece
    uint64_t reported = 0;
    double loss_sum = 0;
  };
  std::vector<Piece> pieces_;  // by rising examples
  uint64_t reported_ = 0;
  double loss_sum_ = 0;
  // The last piece grows until it holds samples_a_piece_ samples.
  uint64_t samples_a_piece_ = 1, samples_in_last_ = 0;
};

// How long a job has trained since its coordinator was started, how fast, and how its loss falls. For people
// only: no decision depends on it.
//
// Belongs to the coordinator's queue.
class JobMeter {
 public:
  // Sets the size of the training set. 0: it is no longer known. Before that, nothing that is reported
  // counts.
  void SetTrainExamples(uint64_t train_examples);

  // Training starts or continues. The speed counts from the first call. `examples`: how many were done
  // before.
  void OnStart(absl::Time now, uint64_t examples);
  // Training has ended. Only the first call counts, until OnMore().
  void OnEnd(absl::Time now);
  // When training started there was nothing left to train.
  void EndAtStart() { ended_ = started_; }
  // The job is not at its end after all.
  void OnMore() { ended_.reset(); }

  // Takes the newest report of one incarnation of a worker.
  void OnReport(uint64_t incarnation, const v1::WorkerReport& report);
  // Shard 0 has just reported how many of the job's examples are done. `running`: training is under way.
  void Sample(absl::Time now, uint64_t examples, bool running);

  // How long the job has trained since its coordinator was started, pauses included.
  absl::Duration trained(absl::Time now) const {
    return started_.has_value() ? ended_.value_or(now) - *started_ : absl::ZeroDuration();
  }
  std::vector<v1::LossPoint> LossCurve() const { return loss_curve_.Points(); }
  // Sets `seconds`, `examples_per_second` and `train_loss`; `state` and `examples` must be set. `whole`: the
  // loss is of the last epoch alone, whenever the workers have reported.
  void Describe(absl::Time now, bool whole, v1::ClusterStatus* status) const;

 private:
  struct Totals {
    uint64_t examples = 0;
    double loss_sum = 0;
  };
  // The reports since the size of the training set is known.
  struct Reports {
    std::map<uint64_t, v1::WorkerReport> newest;  // by incarnation
    Totals totals;                                // of all reports, over all incarnations
    std::deque<Totals> history;                   // rising; the first is the start of the loss's window
    std::deque<std::pair<absl::Time, uint64_t>> samples;
  };
  // Over the last few seconds; 0: unknown.
  double ExamplesPerSecond() const;
  // The mean over about as many of the last examples as the training set has. nullopt: nothing was reported.
  std::optional<double> TrainLoss() const;
  // The mean over the job's last epoch, as far as reported. Its bits do not depend on who computed what,
  // unless two workers computed the same part of a step, whose loss then counts twice.
  std::optional<double> LastEpochLoss() const;

  std::optional<absl::Time> started_, ended_;
  uint64_t examples_before_ = 0;
  uint64_t train_examples_ = 0;
  Reports reports_;
  weir::LossCurve loss_curve_;
};

}  // namespace weir
