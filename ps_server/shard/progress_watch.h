#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/telemetry/logging.h"

namespace weir {

// Notices when no call takes effect on a shard although calls wait, so that the log says why, once for each
// standstill.
class ProgressWatch {
 public:
  // A call has taken effect.
  void Mark(absl::Time now) {
    if (told_) {
      LogInfo("goes on after ", absl::FormatDuration(now - last_));
      limit_ = std::clamp(2 * (now - last_), limit_, kTellAtLast);
      told_ = false;
    }
    last_ = now;
  }

  // `oldest`: when the longest wait began. True: report a standstill now.
  bool StandsStill(absl::Time oldest, absl::Time now) {
    if (told_ || now - std::max(oldest, last_) < limit_) return false;
    told_ = true;
    return true;
  }

  // When a call last took effect.
  absl::Time last() const { return last_; }

 private:
  static constexpr absl::Duration kTellAfter = absl::Seconds(5);
  // A shard that stands still repeatedly, because its steps take long, reports later each time, up to this
  // limit.
  static constexpr absl::Duration kTellAtLast = absl::Minutes(10);

  absl::Time last_;
  absl::Duration limit_ = kTellAfter;
  bool told_ = false;
};

}  // namespace weir
