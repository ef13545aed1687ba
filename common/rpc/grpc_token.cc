#include "common/rpc/grpc_token.h"

namespace weir {
namespace {

constexpr char kEntry[] = "authorization";

}  // namespace

void SetToken(const JobToken& token, grpc::ClientContext* context) {
  if (!token.empty()) context->AddMetadata(kEntry, token.Authorization());
}

bool CarriesToken(const JobToken& token, const grpc::ServerContext& context) {
  const auto entry = context.client_metadata().find(kEntry);
  return entry != context.client_metadata().end() &&
         token.Authorizes({entry->second.data(), entry->second.size()});
}

}  // namespace weir
