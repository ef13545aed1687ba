#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/contestant.h"
#include "bench/host.h"

namespace weir::bench {

// A raw socket loop's settings, and the time of a step with them.
struct RawSetting {
  int64_t window_bytes = 0;
  int connections = 1;
  std::string congestion_control;  // "": the system's own
  double step_seconds = 0;
  double refined_step_seconds = 0;  // 0: not among the best, which are measured again
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RawSetting, window_bytes, connections, congestion_control, step_seconds,
                                   refined_step_seconds)

struct SweepResult {
  std::vector<RawSetting> tried;
  RawSetting best;
};

// Finds the setting with which `raw`, a contestant of that kind, is fastest: tries windows x connections x
// congestion controls, then the best few again, in turns of about this many seconds.
absl::StatusOr<SweepResult> Sweep(const Contestant& raw, double turn_seconds, ServerHost* host);
Contestant WithSetting(Contestant raw, const RawSetting& setting);

// The congestion controls for this process's user: "" (the system's), then those of cubic, reno and bbr that
// TCP_CONGESTION takes.
std::vector<std::string> CongestionControls();

// GB/s of one thread's memcpy of 64 MB.
double MemcpySpeed();

}  // namespace weir::bench
