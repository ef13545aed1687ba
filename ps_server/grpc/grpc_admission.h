#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/rpc/job_token.h"
#include "common/sync/mutex.h"

namespace weir {

// Who may call a server. Asked once for each call, before anything of its request is read or parsed; only
// health and reflection are open to all.
//
// With a token: whoever brings it. Without: everybody who reaches the server, but that control is refused to
// processes of other users, as far as they can be told from ours (ps_server/grpc/tcp_peer.h; who comes over a
// Unix socket has been checked when he connected). To find out whose process calls takes milliseconds, so who
// was refused is refused again for a second without a look. Thread-safe but for SetPort().
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
  grpc::Status AdmitControl(const grpc::ServerContext& context);

 private:
  using Clock = std::chrono::steady_clock;
  struct Refusal {
    Clock::time_point until;
    grpc::Status status;
  };

  const JobToken token_;
  uint16_t port_ = 0;
  Mutex mutex_;
  // By peer, as gRPC writes it: "ipv4:127.0.0.1:2222". At most kMostRefusals.
  std::map<std::string, Refusal> refusals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
