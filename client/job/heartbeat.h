#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "client/exchange/shard_channel.h"
#include "client/job/transport.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Keeps a client's lease: sends one Heartbeat at a time, the next as soon as one is answered, on the event
// loop.
class Heartbeat {
 public:
  struct Options {
    // How long a try may take. The coordinator answers within a third of it.
    std::chrono::nanoseconds lease{};
    // How long the coordinator may be away.
    std::chrono::nanoseconds server_wait{};
    // Makes the next request.
    std::function<v1::HeartbeatRequest()> request;
    // Returns whether to continue.
    std::function<bool(const v1::HeartbeatReply&)> on_reply;
    // Unavailable: the coordinator was away for too long. Unauthenticated, PermissionDenied: the coordinator
    // refuses this client. The message names the coordinator. No other function is called after that.
    std::function<void(const absl::Status&)> on_lost;
  };

  // Starts at once. The functions run on the event loop: they must not block, nor Stop() the heartbeat.
  // Channel and loop outlive the heartbeat.
  Heartbeat(CoordinatorChannel& channel, EventLoop& loop, Options options);
  ~Heartbeat();

  // Cancels the Heartbeat in flight, and waits for its end. Idempotent. Not thread-safe, and not for the
  // event loop.
  void Stop();

 private:
  class Beats;
  const std::shared_ptr<Beats> beats_;
};

}  // namespace weir
