#include "ps_server/coordinator/checkpoint_schedule.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr absl::Duration kMeanTimeBetweenLosses = absl::Minutes(1);
constexpr absl::Duration kShortest = absl::Seconds(1);
constexpr absl::Duration kLongest = absl::Minutes(1);
constexpr double kLargestShare = 0.1;
// After a checkpoint that failed.
constexpr absl::Duration kRetry = absl::Seconds(5);

}  // namespace

CheckpointSchedule::CheckpointSchedule(const v1::CheckpointConfig& config, absl::Time now)
    : every_steps_(config.every_steps()),
      every_(absl::Seconds(config.every_seconds())),
      begun_(now),
      not_before_(now) {}

bool CheckpointSchedule::Due(absl::Time now, uint64_t steps) const {
  if (now < not_before_ || steps <= steps_) return false;
  if (every_steps_ > 0 && steps - steps_ >= every_steps_) return true;
  return now - begun_ >= interval();
}

absl::Duration CheckpointSchedule::interval() const {
  if (every_ > absl::ZeroDuration()) return every_;
  if (every_steps_ > 0) return absl::InfiniteDuration();
  const double young =
      std::sqrt(2 * absl::ToDoubleSeconds(took_) * absl::ToDoubleSeconds(kMeanTimeBetweenLosses));
  return std::max(std::clamp(absl::Seconds(young), kShortest, kLongest), took_ / kLargestShare);
}

void CheckpointSchedule::Begun(absl::Time now, uint64_t steps) {
  begun_ = now;
  steps_ = steps;
}

void CheckpointSchedule::Completed(absl::Time now) { took_ = now - begun_; }

void CheckpointSchedule::Failed(absl::Time now) {
  not_before_ = now + kRetry;
  // Then the next try is due at once, whatever the schedule counts.
  begun_ = absl::InfinitePast();
  steps_ = 0;
}

void CheckpointSchedule::Rewound(absl::Time now, uint64_t steps) {
  begun_ = now;
  steps_ = steps;
}

}  // namespace weir
