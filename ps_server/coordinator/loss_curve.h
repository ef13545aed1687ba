#pragma once

#include <cstdint>
#include <vector>

#include "proto/coordinator.pb.h"

namespace weir {

// How the training loss came down, for people: nothing is decided by it. A job of any length is a few hundred
// points: when there are too many, every two become one. Not thread-safe.
class LossCurve {
 public:
  static constexpr size_t kMostPoints = 200;

  // `examples`: of the job by now, which may go back, and the curve with it. `reported`, `loss_sum`: what
  // workers have told since ps:0 was started, in all.
  void Sample(uint64_t examples, uint64_t reported, double loss_sum);

  std::vector<v1::LossPoint> Points() const;

 private:
  // What was reported between the point before and this one.
  struct Piece {
    uint64_t examples = 0;  // of the job at its end
    uint64_t reported = 0;
    double loss_sum = 0;
  };
  std::vector<Piece> pieces_;  // by rising examples
  uint64_t reported_ = 0;
  double loss_sum_ = 0;
  // The last piece grows until it holds so many samples.
  uint64_t samples_a_piece_ = 1, samples_in_last_ = 0;
};

}  // namespace weir
