#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/call/call_group.h"
#include "client/call/call_limits.h"
#include "client/call/call_retry.h"
#include "client/grpc/grpc_poller.h"
#include "common/rpc/job_token.h"
#include "common/sync/mutex.h"
#include "grpcpp/grpcpp.h"

namespace weir {

// One unary call to one peer: as many tries as it takes (client/call/call_retry.h), one after another, under
// the same key.
//
// Ends exactly once, on the polling thread, or within Start() when the group is closed. Held by shared_ptr;
// keeps itself alive until it has ended. Thread-safe.
class GrpcCall : public Call, public std::enable_shared_from_this<GrpcCall>, private GrpcPoller::Event {
 public:
  // `what` and `peer` are for messages. Poller, group and token outlive the call, which is started at once.
  GrpcCall(GrpcPoller& poller, CallGroup& group, std::string what, std::string peer, const CallLimits& limits,
           const JobToken& token)
      : poller_(poller), group_(group), token_(token), retry_(std::move(what), std::move(peer), limits) {}

  void Start();
  void Cancel(const absl::Status& why) final;

 protected:
  // Starts a try, whose end is the event `tag` on `queue`.
  virtual void StartTry(grpc::ClientContext* context, grpc::CompletionQueue* queue, grpc::Status* status,
                        void* tag) = 0;
  // The call has ended. Runs once, without locks.
  virtual void Finish(const absl::Status& status) = 0;

 private:
  // Starts a try, or ends the call if it was cancelled meanwhile.
  void Try();
  // A try has ended.
  void OnEvent(bool ok) override;
  // What the call ends with after it; nullopt: another try will follow.
  std::optional<absl::Status> Judge(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status);

  GrpcPoller& poller_;
  CallGroup& group_;
  const JobToken& token_;

  Mutex mutex_;
  CallRetry retry_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the try in flight, and its deadline, which runs on while this process is stopped.
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point try_deadline_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GrpcCall> self_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
