#include "ps_server/grpc_admission.h"

#include "common/grpc_token.h"
#include "ps_server/grpc_unary_call.h"
#include "ps_server/tcp_peer.h"

namespace weir {

grpc::Status GrpcAdmission::Admit(const grpc::ServerContext& context) const {
  if (token_.empty() || CarriesToken(token_, context)) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, kTokenMissing};
}

grpc::Status GrpcAdmission::AdmitControl(const grpc::ServerContext& context) const {
  if (!token_.empty()) return Admit(context);
  return ToGrpc(CheckTcpPeer(context.peer(), port_));
}

}  // namespace weir
