#pragma once

#include <memory>

#include "grpcpp/grpcpp.h"

namespace weir {

// How a job's connections are secured: not at all, so that they belong on a network of the job's own. A call
// proves that it is of the job by the job's token (common/rpc/grpc_token.h).
inline std::shared_ptr<grpc::ChannelCredentials> JobChannelCredentials() {
  return grpc::InsecureChannelCredentials();
}
inline std::shared_ptr<grpc::ServerCredentials> JobServerCredentials() {
  return grpc::InsecureServerCredentials();
}

}  // namespace weir
