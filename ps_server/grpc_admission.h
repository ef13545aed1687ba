#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "common/job_token.h"

namespace weir {

// Who may call a server. Asked once for each call, before anything of its request is read or parsed; only
// health and reflection are open to all.
//
// With a token: whoever brings it. Without: everybody who reaches the server, but that control is refused to
// processes of other users, as far as they can be told from ours (ps_server/tcp_peer.h; who comes over a Unix
// socket has been checked when he connected). Thread-safe but for SetPort().
class GrpcAdmission {
 public:
  explicit GrpcAdmission(JobToken token) : token_(std::move(token)) {}
  // The one that the server is bound to, 0 for a Unix socket. Before the first call.
  void SetPort(uint16_t port) { port_ = port; }

  // OK, or what the call is to end with: UNAUTHENTICATED, PERMISSION_DENIED.
  //
  // For what workers, readers and who only looks call.
  grpc::Status Admit(const grpc::ServerContext& context) const;
  // For what moves a job or a server otherwise than a worker does.
  grpc::Status AdmitControl(const grpc::ServerContext& context) const;

 private:
  const JobToken token_;
  uint16_t port_ = 0;
};

}  // namespace weir
