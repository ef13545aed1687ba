#include "common/program/exit_codes.h"

#include "common/protocol/job_failure.h"

namespace weir {

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  static_assert(v1::FailureKind_MAX == v1::FAILURE_INTERNAL, "a new kind of failure needs its case here");
  switch (KindOf(status)) {
    case v1::FAILURE_LOST_PEER:
    case v1::FAILURE_FENCED:
    case v1::FAILURE_DRAINED:
      return kExitPeerLost;
    case v1::FAILURE_CONFIG:
      return kExitConfig;
    case v1::FAILURE_RESOURCE:
      return kExitStorage;
    case v1::FAILURE_DIVERGED:
    case v1::FAILURE_INTERNAL:
    case v1::FAILURE_UNSPECIFIED:
    default:  // a kind of a newer version of the protocol
      return kExitInternal;
  }
}

}  // namespace weir
