#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/job_token.h"
#include "proto/coordinator.pb.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// Tells ps:0 where this server listens (Coordinator.Announce): one call at a time, on an event loop, each on
// a connection of its own. All but Close() is for one thread, which ticks it for as long as ps:0 is to be
// told.
class GrpcAnnouncer {
 public:
  struct Options {
    // Outlives this.
    GrpcEventLoop* loop = nullptr;
    std::string coordinator_address;
    JobToken token;
    v1::AnnounceRequest request;
    // ps:0 will not have this server: AlreadyExists, FailedPrecondition, InvalidArgument, Unauthenticated or
    // PermissionDenied, which name ps:0.
    // On the loop's thread; nothing is called after it. Must not block.
    std::function<void(const absl::Status&)> on_refused;
  };
  explicit GrpcAnnouncer(Options options);
  // Close() comes first.
  ~GrpcAnnouncer();

  // Begins a call if it is time for one: at once at first, more and more seldom while ps:0 does not answer.
  void Tick(absl::Time now);
  // Ends the call under way. Before the loop stops.
  void Close();

 private:
  class Calls;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace weir
