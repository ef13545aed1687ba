#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/telemetry/logging.h"

namespace weir {

// Notices that nothing takes effect on a shard though calls wait, so that the log says why, once for each
// standstill.
class ProgressWatch {
 public:
  // Something has taken effect.
  void Mark(absl::Time now) {
    if (told_) {
      LogInfo("goes on after ", absl::FormatDuration(now - last_));
      limit_ = std::clamp(2 * (now - last_), limit_, kTellAtLast);
      told_ = false;
    }
    last_ = now;
  }

  // `oldest`: since when the call that waits longest has waited. True: a standstill is to be told now.
  bool StandsStill(absl::Time oldest, absl::Time now) {
    if (told_ || now - std::max(oldest, last_) < limit_) return false;
    told_ = true;
    return true;
  }

  // When something took effect last.
  absl::Time last() const { return last_; }

 private:
  static constexpr absl::Duration kTellAfter = absl::Seconds(5);
  // A shard that stands still again and again, since steps take long, tells of it later each time, up to
  // this.
  static constexpr absl::Duration kTellAtLast = absl::Minutes(10);

  absl::Time last_;
  absl::Duration limit_ = kTellAfter;
  bool told_ = false;
};

}  // namespace weir
