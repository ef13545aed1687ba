#include "ps_server/grpc/grpc_admission.h"

#include "common/rpc/grpc_token.h"
#include "ps_server/grpc/grpc_unary_call.h"
#include "ps_server/grpc/tcp_peer.h"

namespace weir {
namespace {

constexpr std::chrono::seconds kRefusalHolds{1};
constexpr size_t kMostRefusals = 1024;

}  // namespace

grpc::Status GrpcAdmission::Admit(const grpc::ServerContext& context) const {
  if (token_.empty() || CarriesToken(token_, context)) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, kTokenMissing};
}

grpc::Status GrpcAdmission::AdmitControl(const grpc::ServerContext& context) {
  if (!token_.empty()) return Admit(context);
  const std::string peer = context.peer();
  const Clock::time_point now = Clock::now();
  {
    MutexLock lock(mutex_);
    const auto known = refusals_.find(peer);
    if (known != refusals_.end() && now < known->second.until) return known->second.status;
  }
  const absl::Status checked = CheckTcpPeer(peer, port_);
  if (checked.ok()) return grpc::Status::OK;
  MutexLock lock(mutex_);
  if (refusals_.size() >= kMostRefusals) refusals_.clear();
  refusals_[peer] = {now + kRefusalHolds, ToGrpc(checked)};
  return refusals_[peer].status;
}

}  // namespace weir
