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

// Decides which processes may call a server. Checked once for each call, before any of its request is read or
// parsed; only health and reflection are open to all.
//
// With a token, every caller that sends the token is admitted. Without a token, every process that reaches
// the server is admitted, except that control calls are refused to processes of other users, as far as this
// machine can tell (ps_server/grpc/tcp_peer.h; a caller on a Unix socket was checked when it connected). The
// check takes milliseconds, so a refusal is repeated for a second without a new check. Thread-safe except for
// SetPort().
class GrpcAdmission {
 public:
  explicit GrpcAdmission(JobToken token) : token_(std::move(token)) {}
  // The port to which the server is bound, 0 for a Unix socket. Must be called before the first call.
  void SetPort(uint16_t port) { port_ = port; }

  // OK, or the status that ends the call: UNAUTHENTICATED, PERMISSION_DENIED.
  //
  // For the calls of workers, readers and observers.
  grpc::Status Admit(const grpc::ServerContext& context) const;
  // For calls that control a job or a server.
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
