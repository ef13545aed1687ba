#pragma once

#include <cstdint>
#include <limits>

namespace weir {

// The consequence of a push's version staleness: the shard's version just before the push takes effect, minus
// the version that its worker had pulled. bounded and async. A plain value.
struct StalenessRule {
  // The gradient is divided by 1 + staleness (Zhang, Gupta, Lian and Liu 2015, "Staleness-aware async-SGD for
  // distributed deep learning", section 3.2, where the learning rate is).
  bool scales = false;
  // A push beyond it completes without an update (Maranjyan, Tyurin and Richtarik 2025, "Ringmaster ASGD",
  // algorithm 4).
  uint64_t limit = std::numeric_limits<uint64_t>::max();

  bool Drops(uint64_t staleness) const { return staleness > limit; }
  // By which the gradient is multiplied.
  double Factor(uint64_t staleness) const { return scales ? 1 / (1 + static_cast<double>(staleness)) : 1; }
};

}  // namespace weir
