#pragma once

#include <cstdint>
#include <vector>

#include "proto/coordinator.pb.h"

namespace weir {

// How the training loss fell, for people: no decision depends on it. The curve of a job of any length has at
// most kMostPoints points: when there are too many, every two become one. Not thread-safe.
class LossCurve {
 public:
  static constexpr size_t kMostPoints = 200;

  // `examples`: the job's examples so far; they may go back, and the curve goes back with them. `reported`,
  // `loss_sum`: the totals that workers have reported since ps:0 was started.
  void Sample(uint64_t examples, uint64_t reported, double loss_sum);

  std::vector<v1::LossPoint> Points() const;

 private:
  // What was reported between the point before and this one.
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

}  // namespace weir
