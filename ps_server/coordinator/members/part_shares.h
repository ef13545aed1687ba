#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace weir {

// sync: how many of a step's parts each worker computes (v1.Member.share). Slower workers get fewer, so that
// the others wait less for them. A step's bits do not depend on it.
//
// A worker's seconds for a part follow from its reports. Shares change only when the slowest worker is done
// with its parts clearly earlier then, and not often, since a part may be computed twice in the step of a
// change.
//
// Belongs to the coordinator's queue.
class PartShares {
 public:
  // How many parts a worker computes before its speed is known, and known anew.
  static constexpr uint64_t kPartsOfSample = 8;
  // The least time between two changes, while the same workers are there.
  static constexpr absl::Duration kInterval = absl::Seconds(10);
  // By how much a step must become faster.
  static constexpr double kLeastGain = 0.1;

  // The totals that this incarnation of a worker has reported. Seconds that are not finite count as not
  // reported.
  void OnReport(uint64_t incarnation, double compute_seconds, uint64_t parts);
  void OnGone(uint64_t incarnation) { speeds_.erase(incarnation); }

  struct Worker {
    uint64_t incarnation = 0;
    // 0: it has none of its own; part p belongs to the (p mod n)-th worker.
    uint32_t share = 0;
  };
  // The shares that the workers should have now, in their order, at least 1 each, `parts` in all; or 0 for
  // all of them. nullopt: no shares change.
  std::optional<std::vector<uint32_t>> Change(absl::Time now, uint32_t parts,
                                              const std::vector<Worker>& workers);

 private:
  struct Speed {
    // Where the sample begins.
    double seconds = 0;
    uint64_t parts = 0;
    // Of a part, averaged over samples. nullopt: not known yet.
    std::optional<double> of_part;
  };
  std::map<uint64_t, Speed> speeds_;  // by incarnation
  std::optional<absl::Time> changed_;
};

}  // namespace weir
