#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/backoff.h"
#include "client/call_group.h"
#include "client/call_limits.h"
#include "common/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

namespace weir {

// One call to one peer: as many tries as it takes, one after another, under the same key. A try that fails
// with UNAVAILABLE or CANCELLED (by the peer) is followed by another one after a jittered wait; any other
// error ends the call.
//
// Ends exactly once, on a thread of gRPC, or within Start() when the group is closed. Held by shared_ptr;
// keeps itself alive until it has ended. Thread-safe.
class GrpcCall : public Call, public std::enable_shared_from_this<GrpcCall> {
 public:
  // `what` and `peer` are for messages: "the pull at clock 7", "ps:1 at 10.0.0.1:2222". The group outlives
  // the call.
  GrpcCall(CallGroup& group, std::string what, std::string peer, const CallLimits& limits)
      : group_(group), what_(std::move(what)), peer_(std::move(peer)), limits_(limits) {}

  void Start();
  void Cancel(const absl::Status& why) final;

 protected:
  // Starts a try on `context`, which stays valid until its TryDone(). May run on any thread.
  virtual void StartTry(grpc::ClientContext* context) = 0;
  // The call has ended. Runs once, without locks.
  virtual void Finish(const absl::Status& status) = 0;

  enum class Next {
    kEnd,   // with the try's status, unless that asks for a retry
    kGoOn,  // the call is not complete: another try follows at once
  };
  // Ends a try; exactly once for each.
  void TryDone(const absl::Status& status, Next next = Next::kEnd);

  const std::string& what() const { return what_; }
  const std::string& peer() const { return peer_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Starts a try, or ends the call if it was cancelled meanwhile.
  void Try();
  void End(const absl::Status& status);
  // What a failed try means: nullopt asks for another one.
  std::optional<absl::Status> Judge(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  CallGroup& group_;
  const std::string what_, peer_;
  const CallLimits limits_;

  Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point deadline_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point try_started_ ABSL_GUARDED_BY(mutex_);
  // Since when the peer could not be reached.
  std::optional<Clock::time_point> unreachable_since_ ABSL_GUARDED_BY(mutex_);
  Backoff backoff_ ABSL_GUARDED_BY(mutex_){std::chrono::milliseconds(50), std::chrono::milliseconds(1000)};
  // Of the try in flight.
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  // While the call waits for its next try.
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
