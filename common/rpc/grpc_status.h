#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace weir {

// Codes of absl::Status and gRPC are the same numbers. The kind of a failure (common/protocol/job_failure.h)
// travels along. A very long message is shortened.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace weir
