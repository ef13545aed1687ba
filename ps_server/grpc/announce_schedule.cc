#include "ps_server/grpc/announce_schedule.h"

#include <algorithm>

namespace weir {
namespace {

// The time between calls without a coordinator: after ps:0 has taken the address but has not attached yet;
// and after ps:0 did not answer.
constexpr absl::Duration kAgain = absl::Milliseconds(500);
constexpr absl::Duration kFirstWait = absl::Milliseconds(50);
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// A new ps:0 waits for its servers for cluster.start_seconds. It must hear of them a few times meanwhile,
// since a call may be lost.
constexpr int kTimesBeforeStart = 4;

// A lease is what any lost peer costs; and a connection for each lease is little beside the pings.
absl::Duration WhileAttached(const v1::JobConfig& config) {
  if (!config.checkpoint().has_directory()) return absl::InfiniteDuration();
  const auto& cluster = config.cluster();
  return std::max(kAgain, std::min(absl::Seconds(cluster.lease_seconds()),
                                   absl::Seconds(cluster.start_seconds()) / kTimesBeforeStart));
}

}  // namespace

AnnounceSchedule::AnnounceSchedule(const v1::JobConfig& config)
    : while_attached_(WhileAttached(config)), wait_(kFirstWait), longer_(kFirstWait) {}

bool AnnounceSchedule::Due(absl::Time now, bool attached) const {
  const absl::Duration wait = attached ? while_attached_ : wait_;
  return !busy_ && wait < absl::InfiniteDuration() && now - begun_ >= wait;
}

void AnnounceSchedule::OnBegin(absl::Time now) {
  busy_ = true;
  begun_ = now;
}

void AnnounceSchedule::OnTaken() {
  busy_ = false;
  wait_ = kAgain;
  longer_ = kFirstWait;
}

void AnnounceSchedule::OnNoAnswer() {
  busy_ = false;
  wait_ = longer_;
  longer_ = std::min(2 * longer_, kLongestWait);
}

}  // namespace weir
