#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/sync/executor.h"
#include "common/sync/mutex.h"

namespace weir {

// A completion queue of gRPC's and the one thread that serves it. What happens on it needs no locks:
// operations that end, and what other threads post. When all that has come is handled, those who asked for it
// get to settle: so that answers which came one after another, inline, can leave together.
//
// Operations on the queue are started on its thread only, and not once stopping() is true.
class GrpcEventLoop final : public Executor {
 public:
  // The tag of operations on the queue; one that is under way must be kept.
  class Event {
   public:
    // On the loop's thread.
    virtual void Done(bool ok) = 0;

   protected:
    ~Event() = default;
  };

  class Settler {
   public:
    virtual void Settle() = 0;

   protected:
    ~Settler() = default;

   private:
    friend class GrpcEventLoop;
    bool due_ = false;
  };

  // The thread looks for events for `busy_poll` before it sleeps.
  GrpcEventLoop(std::unique_ptr<grpc::ServerCompletionQueue> queue, std::chrono::microseconds busy_poll);
  // Stops.
  ~GrpcEventLoop();

  void Start();
  // Waits until all operations have come back. To be called when the queue's server is shut down; never from
  // the loop.
  void Stop();

  // Runs tasks on the loop's thread.
  void Post(absl::AnyInvocable<void()> task) override;

  // Calls that were accepted on this loop and are not over. Begins and ends on the loop's thread; whoever
  // waits is another one. False: some were still open at the deadline.
  void CallBegins();
  void CallEnds();
  bool WaitUntilNoCalls(std::chrono::steady_clock::time_point deadline);

  // For the loop's thread.
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  bool stopping() const { return stopping_; }
  // Settle() will run once. Not again before that if asked again.
  void SettleLater(Settler* settler);

 private:
  void Run();
  bool Next(void** tag, bool* ok);
  // Until nothing is left to do but to wait.
  void Work();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  const std::chrono::microseconds busy_poll_;
  std::thread thread_;

  // Of the thread.
  bool stopping_ = false;
  std::vector<Settler*> settlers_;

  Mutex mutex_;
  CondVar calls_ended_;
  int open_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::AnyInvocable<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  // The thread will look at `posted_` before it waits, or has been woken.
  bool awake_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Wakes the thread; under way between Set() and the event whose tag it is.
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  bool alarm_set_ ABSL_GUARDED_BY(mutex_) = false;
};

// An operation of an object of the loop's thread, which hears of its end.
template <typename Owner>
class GrpcOperation final : public GrpcEventLoop::Event {
 public:
  GrpcOperation(Owner* owner, void (Owner::*done)(bool ok)) : owner_(owner), done_(done) {}

  void* tag() { return static_cast<GrpcEventLoop::Event*>(this); }
  // The tag, of an operation that is started with it.
  void* Begin() {
    under_way_ = true;
    return tag();
  }
  bool under_way() const { return under_way_; }
  void Done(bool ok) override {
    under_way_ = false;
    (owner_->*done_)(ok);
  }

 private:
  Owner* const owner_;
  void (Owner::*const done_)(bool ok);
  bool under_way_ = false;
};

}  // namespace weir
