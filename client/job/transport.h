#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_set.h"
#include "common/codec/wire_codec.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The reply to each request of a member. The request is named after its method: JoinRequest.
v1::JoinReply ReplyTo(const v1::JoinRequest&);
v1::ClusterStatus ReplyTo(const v1::StatusRequest&);
v1::HeartbeatReply ReplyTo(const v1::HeartbeatRequest&);
v1::NextRangeReply ReplyTo(const v1::NextRangeRequest&);
v1::PinReply ReplyTo(const v1::PinRequest&);
v1::UnpinReply ReplyTo(const v1::UnpinRequest&);
v1::ReportReply ReplyTo(const v1::ReportRequest&);
v1::StopReply ReplyTo(const v1::StopRequest&);
v1::LeaveReply ReplyTo(const v1::LeaveRequest&);

// A client's channel to the coordinator: single tries of unary calls. Retries are in
// client/job/coordinator_calls.h.
//
// Thread-safe. Outlives its tries.
class CoordinatorChannel {
 public:
  template <typename Request>
  using ReplyOf = decltype(ReplyTo(std::declval<Request>()));
  // A try under way. Keeps itself alive until it has ended. Thread-safe.
  class Try {
   public:
    virtual ~Try() = default;
    // Makes the try end soon, Cancelled unless it is ending already. Returns before that.
    virtual void Cancel() = 0;
  };
  using TryPtr = std::shared_ptr<Try>;
  // Runs once, on the event loop, and not within the call that starts the try.
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;
  using Limit = std::chrono::nanoseconds;
  using Message = google::protobuf::Message;

  virtual ~CoordinatorChannel() = default;

  // "ps:0 (coordinator) at 10.0.0.1:2222".
  virtual std::string name() const = 0;
  // Returns whether there is a connection right now.
  virtual bool connected() const = 0;
  // Looks for a cause of failed connections that no further try will mend: the two ends do not agree about
  // TLS, or one end does not accept the other's certificate. FailedPrecondition: the cause; OK: none was
  // found. May take a few seconds.
  virtual absl::Status Diagnose() { return absl::OkStatus(); }

  // The name of the request's method: "Join".
  template <typename Request>
  static std::string MethodOf() {
    return std::string(absl::StripSuffix(Request::descriptor()->name(), "Request"));
  }
  // Starts a try. If it takes longer than `limit`, it ends with DeadlineExceeded; nanoseconds::max(): no
  // limit.
  template <typename Request>
  TryPtr Start(const Request& request, Limit limit, Done<ReplyOf<Request>> done) {
    const auto reply = std::make_shared<ReplyOf<Request>>();
    return StartMethod(MethodOf<Request>(), request, reply, limit,
                       [reply, done = std::move(done)](const absl::Status& status) {
                         done(status.ok() ? absl::StatusOr<ReplyOf<Request>>(std::move(*reply)) : status);
                       });
  }

 protected:
  // Writes the reply before it runs `done`.
  virtual TryPtr StartMethod(const std::string& method, const Message& request,
                             std::shared_ptr<Message> reply, Limit limit,
                             std::function<void(const absl::Status&)> done) = 0;
};

// How a client reaches a job. The gRPC transport is client/grpc/grpc_transport.cc; the simulation has its
// own. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Lives as long as it is held.
  virtual std::shared_ptr<EventLoop> loop() = 0;
  // An unguessable number, for v1.Caller.instance.
  virtual uint64_t NewInstance() = 0;
  // A channel to the coordinator at this address, which need not be there yet. `attempt`: how long an attempt
  // to connect may take; by default as long as suits cluster.server_wait_seconds.
  virtual std::unique_ptr<CoordinatorChannel> OpenCoordinator(
      const std::string& address, std::optional<std::chrono::nanoseconds> attempt) = 0;
  // A channel to the shard, which has this many elements.
  virtual std::unique_ptr<ShardChannel> OpenShard(uint32_t shard, const std::string& address,
                                                  int64_t elements) = 0;

  // WireOptions::chunk_unit.
  virtual int64_t chunk_unit() const { return kChunkUnit; }
  // Gets what shards answer to the client, unless the client keeps a history; outlives the client. nullptr:
  // none.
  virtual ShardSet::Observer* observer() { return nullptr; }
};

}  // namespace weir
