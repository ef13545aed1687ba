#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"

namespace weir {

// A client's channel to the coordinator: single tries of unary calls. The gRPC channel is
// client/grpc/grpc_coordinator_channel.h. Retries are in client/job/coordinator_calls.h.
//
// Thread-safe. Outlives its tries.
class CoordinatorChannel {
 public:
  // A try under way. Keeps itself alive until it has ended. Thread-safe.
  class Try {
   public:
    virtual ~Try() = default;
    // Makes the try end soon, Cancelled unless it is ending already. Returns before that.
    virtual void Cancel() = 0;
  };
  using TryPtr = std::shared_ptr<Try>;
  // Runs once, on the event loop, and not within the call that starts the try.
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  virtual ~CoordinatorChannel() = default;

  // "ps:0 (coordinator) at 10.0.0.1:2222".
  virtual std::string name() const = 0;
  // Returns whether there is a connection right now.
  virtual bool connected() const = 0;
  // Looks for a cause of failed connections that no further try will mend: the two ends do not agree about
  // TLS, or one end does not accept the other's certificate. FailedPrecondition: the cause; OK: none was
  // found. May take a few seconds.
  virtual absl::Status Diagnose() { return absl::OkStatus(); }

  // A try that takes longer than `limit` ends with DeadlineExceeded; nanoseconds::max(): no limit.
  using Limit = std::chrono::nanoseconds;
  virtual TryPtr Join(const v1::JoinRequest& request, Limit limit, Done<v1::JoinReply> done) = 0;
  virtual TryPtr Status(const v1::StatusRequest& request, Limit limit, Done<v1::ClusterStatus> done) = 0;
  virtual TryPtr Heartbeat(const v1::HeartbeatRequest& request, Limit limit,
                           Done<v1::HeartbeatReply> done) = 0;
  virtual TryPtr NextRange(const v1::NextRangeRequest& request, Limit limit,
                           Done<v1::NextRangeReply> done) = 0;
  virtual TryPtr Pin(const v1::PinRequest& request, Limit limit, Done<v1::PinReply> done) = 0;
  virtual TryPtr Unpin(const v1::UnpinRequest& request, Limit limit, Done<v1::UnpinReply> done) = 0;
  virtual TryPtr Report(const v1::ReportRequest& request, Limit limit, Done<v1::ReportReply> done) = 0;
  virtual TryPtr Leave(const v1::LeaveRequest& request, Limit limit, Done<v1::LeaveReply> done) = 0;
};

}  // namespace weir
