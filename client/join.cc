// Client::Join(): a member of the job over gRPC.
#include "client/client.h"
#include "client/grpc/grpc_transport.h"
#include "client/job/client_impl.h"
#include "common/base/status_macros.h"

namespace weir {

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const ClientOptions& options, const ModelSpec& model) {
  v1::JobConfig config;
  if (!config.ParseFromString(options.job_config)) {
    return absl::InvalidArgumentError("the job's config is not a serialized weir.v1.JobConfig");
  }
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<GrpcTransport> transport,
                        GrpcTransport::Create(config, options.token, options.tls));
  return ClientImpl::Join(options, model, config, *transport);
}

}  // namespace weir
