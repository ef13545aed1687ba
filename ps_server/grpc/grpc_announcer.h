#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/job_token.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// Reports this server's address to ps:0 (Coordinator.Announce): one call at a time, on an event loop, each on
// a connection of its own. One thread, which calls Tick() again and again, uses all methods except Close().
class GrpcAnnouncer {
 public:
  struct Options {
    // Outlives the announcer.
    GrpcEventLoop* loop = nullptr;
    std::string coordinator_address;
    JobToken token;
    std::shared_ptr<const JobCredentials> credentials;
    // All but its job, which `job` returns on the loop's thread.
    v1::AnnounceRequest request;
    std::function<v1::JobIdentity()> job;
    // The job's, which says how often.
    v1::JobConfig config;
    // ps:0 refuses this server: AlreadyExists, FailedPrecondition, InvalidArgument, Unauthenticated or
    // PermissionDenied; NotFound: the server at its address is not ps:0. The message names ps:0. Runs on the
    // loop's thread, as the last callback. Must not block.
    std::function<void(const absl::Status&)> on_refused;
    // ps:0 took the address, or did not answer. Run on the loop's thread. Must not block.
    std::function<void()> on_answer, on_no_answer;
  };
  explicit GrpcAnnouncer(Options options);
  // Close() must be called before.
  ~GrpcAnnouncer();

  // Begins a call if one is due (AnnounceSchedule). `attached`: a coordinator is attached to this server.
  void Tick(absl::Time now, bool attached);
  // Ends the call in flight. Must be called before the loop stops.
  void Close();

 private:
  class Calls;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace weir
