#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include "absl/functional/function_ref.h"
#include "common/rpc/grpc_event.h"
#include "common/sync/mutex.h"

namespace weir {

// Takes a completion queue's events and hands them to their owners, and wakes the thread that does so when
// there is other work for it. Which work that is (tasks, timers), and how long the thread waits for events,
// is the user's.
//
// The tags of all operations on the queue are GrpcEvents. One thread at a time calls HandleNext(); it may be
// another one each time. Wake() may be called on any thread, until the queue is shut down.
//
// At the end the user shuts the queue down and calls HandleNext() until it returns SHUTDOWN: all operations,
// Wake()'s own included, have ended then, and the loop may be destroyed.
class GrpcCompletionLoop {
 public:
  using NextStatus = grpc::CompletionQueue::NextStatus;
  // Waits for an event as CompletionQueue::AsyncNext() does.
  using Wait = absl::FunctionRef<NextStatus(void** tag, bool* ok)>;

  // The queue outlives the loop.
  explicit GrpcCompletionLoop(grpc::CompletionQueue* queue) : queue_(queue) {}

  // Guards the work, too, that other threads leave for the loop's thread: so one lock covers leaving the work
  // and waking the thread, and the thread looks for work and falls asleep under one lock.
  Mutex mutex;

  // Calls `wait`, and then OnEvent() of the event, if one came. The mutex is released during both. GOT_EVENT
  // also means that the thread was woken. `wait` takes events from this loop's queue.
  NextStatus HandleNext(Wait wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Ends the wait of HandleNext(). Does nothing if no thread waits: then the next caller of HandleNext()
  // looks for work first, under the same lock.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  grpc::CompletionQueue* const queue_;
  // A thread is in `wait`.
  bool waits_ ABSL_GUARDED_BY(mutex) = false;
  // In flight between Set() and the event whose tag is the alarm.
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex);
  bool alarm_set_ ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace weir
