#pragma once

#include <cstdint>
#include <vector>

#include "client/types.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The losses of a member's batches, cut into windows, for train.divergence. ps:0 decides whether the job
// diverges; each report to ps:0 has the windows that are whole and that ps:0 has yet to acknowledge.
//
// A window has kLossWindow batches with a finite loss; the first window has kFirstLossWindow. If the losses
// of kLossWindow batches in a row are not finite, these batches are a window of their own. If there are more
// windows than a report may have, only the lowest and the highest of each few neighbours are kept.
//
// Not thread-safe.
class LossWindows {
 public:
  // The progress since the member joined, after the batch of this clock.
  void OnProgress(const Progress& progress, uint64_t clock);

  void Describe(v1::WorkerReport* report) const;
  // The number of the newest window that is whole; 0: there is none.
  uint64_t newest() const { return newest_; }
  // ps:0 has the windows up to this number.
  void OnAcknowledged(uint64_t number);

 private:
  void Close(v1::LossWindow window, uint64_t clock);
  void Thin();

  Progress last_;
  v1::LossWindow open_;
  // Batches since the last finite loss.
  uint64_t not_finite_ = 0;
  uint64_t newest_ = 0;
  bool first_closed_ = false;
  // Whole, and not acknowledged.
  std::vector<v1::LossWindow> whole_;
};

}  // namespace weir
