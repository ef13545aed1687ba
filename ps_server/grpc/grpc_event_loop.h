#pragma once

#include <grpcpp/completion_queue.h>

#include <chrono>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/shared_memory/doorbell.h"
#include "common/threads/mutex.h"
#include "common/threads/serial_queue.h"

namespace weir {

// A completion queue of gRPC and the one thread that serves it. The thread handles operations that end, and
// tasks that other threads post, so these need no locks. When all of them are handled, the registered
// starters run, so that answers which came one after another can leave together.
//
// Operations on the queue are started on its thread only, and not once stopping() is true.
class GrpcEventLoop final : public Executor {
  using Steady = std::chrono::steady_clock;

 public:
  class OperationStarter {
   public:
    virtual void StartOperations() = 0;

   protected:
    ~OperationStarter() = default;

   private:
    friend class GrpcEventLoop;
    bool due_ = false;
  };

  // A call that was accepted and whose request is still to come. It has kRequestTime.
  class RequestWaiter {
   public:
    virtual void OnLate() = 0;

   protected:
    ~RequestWaiter() = default;

   private:
    friend class GrpcEventLoop;
    bool waits_ = false;
    Steady::time_point due_;
    std::list<RequestWaiter*>::iterator place_;
  };
  static constexpr std::chrono::seconds kRequestTime{20};

  // The thread polls for events for `busy_poll` before it sleeps.
  GrpcEventLoop(std::unique_ptr<grpc::ServerCompletionQueue> queue, std::chrono::microseconds busy_poll);
  // Calls Stop().
  ~GrpcEventLoop();

  // Once. `adds`: Add() will be called. An error: the system gives no thread.
  absl::Status Start(bool adds = false);
  // Waits until all operations have ended. Must be called after the queue's server is shut down, and never on
  // the loop's thread.
  void Stop();

  // Runs the task on the loop's thread.
  void Post(absl::AnyInvocable<void()> task) override;

  // Calls that this loop has accepted and that are not over. The loop's thread reports the begin and the end
  // of each; another thread waits. False: some calls were still open at the deadline.
  void CallBegins();
  void CallEnds();
  bool WaitUntilNoCalls(Steady::time_point deadline);

  // For the loop's thread only.
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  bool stopping() const { return stopping_; }
  // As in GrpcCompletionLoop.
  void Add(SharedWork* work, Doorbell* bell) { loop_.Add(work, bell); }
  void Remove(SharedWork* work) { loop_.Remove(work); }
  // OnLate() will run unless RequestCame() is called in time. The waiter lives until RequestCame(), late or
  // not.
  void AwaitRequest(RequestWaiter* waiter);
  void RequestCame(RequestWaiter* waiter);
  // StartOperations() will run once, however often it is requested before that.
  void StartOperationsLater(OperationStarter* starter);

 private:
  void Run();
  // Runs until the thread can only wait. Releases the lock meanwhile.
  void Work() ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_.mutex);
  // Releases the lock meanwhile.
  void TellLate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(loop_.mutex);

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  GrpcCompletionLoop loop_;
  std::thread thread_;

  // Used by the loop's thread only.
  bool stopping_ = false;
  std::vector<OperationStarter*> starters_;
  std::list<RequestWaiter*> waiters_;  // the one whose request is due first comes first

  CondVar calls_ended_;
  int open_calls_ ABSL_GUARDED_BY(loop_.mutex) = 0;
  // The thread reads these before it waits.
  std::vector<absl::AnyInvocable<void()>> posted_ ABSL_GUARDED_BY(loop_.mutex);
  bool stopped_ ABSL_GUARDED_BY(loop_.mutex) = false;
};

}  // namespace weir
