#pragma once

#include "common/rpc/job_token.h"
#include "grpcpp/grpcpp.h"

namespace weir {

// Makes a call carry the job's token, if the job has one. Called before the call is started.
void SetToken(const JobToken& token, grpc::ClientContext* context);
// Returns whether a call carries this token.
bool CarriesToken(const JobToken& token, const grpc::ServerContext& context);

}  // namespace weir
