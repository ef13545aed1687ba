#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/shared_memory/doorbell.h"
#include "common/threads/mutex.h"

namespace weir {

// Takes a completion queue's events and hands them to their owners, serves work in shared memory, and wakes
// the thread that does so when there is other work for it. The user decides what other work there is (tasks,
// timers), and how long the thread waits.
//
// While there is no shared work, the thread waits in the completion queue. A thread cannot wait for the queue
// and for a doorbell at once. So from the first shared work on it waits for the doorbell. A thread of the
// loop's own takes the queue's events, which are then few, and passes them on.
//
// The tags of all operations on the queue are GrpcEvents. One thread at a time calls HandleNext(), though not
// always the same thread; here it is "the loop's thread". Any thread may call Wake(), until the queue is shut
// down.
//
// At the end the user shuts the queue down and calls HandleNext() until it returns SHUTDOWN: all operations,
// Wake()'s own included, have ended then, and the loop may be destroyed.
class GrpcCompletionLoop {
 public:
  using NextStatus = grpc::CompletionQueue::NextStatus;
  using Steady = std::chrono::steady_clock;

  // The queue outlives the loop. Before the thread sleeps, it looks for work for `busy_poll`. If that is 0,
  // it still looks for shared work, for as long as that pays.
  explicit GrpcCompletionLoop(grpc::CompletionQueue* queue,
                              std::chrono::microseconds busy_poll = std::chrono::microseconds(0))
      : queue_(queue), busy_poll_(busy_poll) {}
  ~GrpcCompletionLoop();

  // Also guards the work that other threads leave for the loop's thread. So a thread leaves work and wakes
  // the loop's thread under one lock, and the loop's thread looks for work and falls asleep under this lock.
  Mutex mutex;

  // Waits for an event or for shared work until `until`, and handles what came. The mutex is released
  // meanwhile. GOT_EVENT also means that the thread was woken. TIMEOUT may come early.
  NextStatus HandleNext(Steady::time_point until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Ends the wait of HandleNext(). Does nothing if no thread waits: then the next caller of HandleNext()
  // looks for work first, under the same lock.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Makes the thread that Add() needs. Called before the first Add(), without the mutex; again: no effect. An
  // error: the system gives no thread.
  absl::Status PrepareToAdd();
  // Called on the loop's thread, without the mutex, after PrepareToAdd(). `bell` is the same in all calls and
  // outlives the loop: a thread that leaves work rings it afterwards.
  void Add(SharedWork* work, Doorbell* bell);
  void Remove(SharedWork* work);

 private:
  struct Event {
    void* tag;
    bool ok;
  };

  NextStatus Take(Event* event, Steady::time_point until);
  void Handle(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // HandleNext() from the first shared work on.
  NextStatus HandleShared(Steady::time_point until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns when there is something to do, at `until`, or sooner.
  void WaitForShared(Steady::time_point until);
  bool ServeShared();
  // Whether HandleShared() has something to do.
  bool SomethingReady() const;
  // Runs on the loop's own thread.
  void PassOn();

  grpc::CompletionQueue* const queue_;
  const std::chrono::microseconds busy_poll_;
  // A thread waits in HandleNext().
  bool waits_ ABSL_GUARDED_BY(mutex) = false;
  // In flight between Set() and the event whose tag is the alarm.
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex);
  bool alarm_set_ ABSL_GUARDED_BY(mutex) = false;

  // Null: there was no shared work yet. Set on the loop's thread; Wake() reads it under the mutex.
  std::atomic<Doorbell*> bell_ = nullptr;
  // How long the thread looks for shared work if busy_poll_ is 0.
  AdaptiveSpin spin_;
  // Used on the loop's thread. Removed work leaves nullptr while the others are being served.
  std::vector<SharedWork*> shared_;
  bool serving_ = false;
  // Waits for bell_, and then takes the queue's events.
  std::thread passes_on_;
  CondVar added_;
  bool ending_ ABSL_GUARDED_BY(mutex) = false;
  std::vector<Event> passed_ ABSL_GUARDED_BY(mutex);
  // The queue is shut down and empty.
  bool drained_ ABSL_GUARDED_BY(mutex) = false;
  // passed_ or drained_ have something new; the thread was woken.
  std::atomic<bool> any_passed_ = false, woken_ = false;
};

// The tag of an operation on a completion queue that a GrpcCompletionLoop serves; gRPC gets it as a pointer
// to this class. It must live until OnEvent().
class GrpcEvent {
 public:
  // The operation has ended. Runs on the thread that serves the queue, without locks, and must not block. May
  // destroy the event.
  virtual void OnEvent(bool ok) = 0;

 protected:
  ~GrpcEvent() = default;
};

// An operation of an object that lives on the thread which serves the queue. `done` is called when the
// operation ends.
template <typename Owner>
class GrpcOperation final : public GrpcEvent {
 public:
  GrpcOperation(Owner* owner, void (Owner::*done)(bool ok)) : owner_(owner), done_(done) {}

  void* tag() { return static_cast<GrpcEvent*>(this); }
  // Marks the operation as in flight. Returns the tag to start it with.
  void* Begin() {
    under_way_ = true;
    return tag();
  }
  bool under_way() const { return under_way_; }
  void OnEvent(bool ok) override {
    under_way_ = false;
    (owner_->*done_)(ok);
  }

 private:
  Owner* const owner_;
  void (Owner::*const done_)(bool ok);
  bool under_way_ = false;
};

}  // namespace weir
