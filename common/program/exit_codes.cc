#include "common/program/exit_codes.h"

#include "common/protocol/job_failure.h"

namespace weir {

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  switch (KindOf(status)) {
    case v1::FAILURE_LOST_PEER:
    case v1::FAILURE_FENCED:
    case v1::FAILURE_DRAINED:
      return kExitPeerLost;
    case v1::FAILURE_CONFIG:
      return kExitConfig;
    case v1::FAILURE_RESOURCE:
      return kExitStorage;
    default:
      return kExitInternal;
  }
}

}  // namespace weir
