#include "ps_server/coordinator/compute_share.h"

#include <algorithm>

namespace weir {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(10);
// Reports that come sooner are left out, so that a worker's heartbeats cost no memory.
constexpr absl::Duration kInterval = absl::Milliseconds(250);

}  // namespace

void ComputeShare::OnReport(absl::Time now, double compute_seconds) {
  if (!samples_.empty() && now - samples_.back().first < kInterval) return;
  samples_.emplace_back(now, compute_seconds);
  while (samples_.size() > 2 && now - samples_[1].first >= kWindow) samples_.pop_front();
}

std::optional<double> ComputeShare::Value() const {
  if (samples_.size() < 2) return std::nullopt;
  const double seconds = absl::ToDoubleSeconds(samples_.back().first - samples_.front().first);
  const double share = (samples_.back().second - samples_.front().second) / seconds;
  return share > 0 ? std::min(share, 1.0) : 0;  // NaN is 0
}

}  // namespace weir
