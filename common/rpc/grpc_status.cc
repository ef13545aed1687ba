#include "common/rpc/grpc_status.h"

#include <string>

#include "common/base/shortened.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

// All header fields of an answer may have 8 KiB; a peer's own words may be in the message.
constexpr size_t kMostBytes = 4000;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message(), kMostBytes),
                      DetailsOf(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return FromDetails(static_cast<absl::StatusCode>(status.error_code()), status.error_message(),
                     status.error_details());
}

}  // namespace weir
