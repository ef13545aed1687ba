#include "common/rpc/grpc_status.h"

#include <string>

#include "common/protocol/job_failure.h"

namespace weir {

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      DetailsOf(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return FromDetails(static_cast<absl::StatusCode>(status.error_code()), status.error_message(),
                     status.error_details());
}

}  // namespace weir
