#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/grpc/grpc_poller.h"
#include "common/rpc/job_token.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Keeps a client's lease: one Heartbeat at a time, the next one as soon as it is answered, on a thread of its
// own.
class GrpcHeartbeat {
 public:
  struct Options {
    // Of ps:0.
    std::string address;
    JobToken token;
    // How long a try may take. The coordinator answers within a third of it.
    std::chrono::nanoseconds lease{};
    // How long the coordinator may be away.
    std::chrono::nanoseconds server_wait{};
    // Makes the next request.
    std::function<v1::HeartbeatRequest()> request;
    // Returns whether to go on.
    std::function<bool(const v1::HeartbeatReply&)> on_reply;
    // The coordinator was away for too long: Unavailable. Or it refuses this client: Unauthenticated,
    // PermissionDenied. Names it. Nothing follows.
    std::function<void(const absl::Status&)> on_lost;
  };

  // Starts at once. The functions are called from the heartbeat's thread and may take locks, but not Stop()
  // it. The poller outlives it.
  GrpcHeartbeat(GrpcPoller& poller, Options options);
  ~GrpcHeartbeat();

  // Ends the heartbeat in flight and the thread. Idempotent; not thread-safe.
  void Stop();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace weir
