#include "common/rpc/grpc_completion_loop.h"

#include <grpc/support/time.h>

#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/sync/mutex.h"

namespace weir {
namespace {

using Status = GrpcCompletionLoop::NextStatus;

class LoopTest {
 public:
  ~LoopTest() {
    queue.Shutdown();
    while (Next() != Status::SHUTDOWN) {
    }
  }

  // Takes an event that is there already.
  Status Next() {
    return HandleNext(
        [this](void** tag, bool* ok) { return queue.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC)); });
  }
  Status HandleNext(GrpcCompletionLoop::Wait wait) {
    MutexLock lock(loop.mutex);
    return loop.HandleNext(wait);
  }
  Status Take(void** tag, bool* ok) {
    const gpr_timespec limit = gpr_time_from_seconds(30, GPR_TIMESPAN);
    return queue.AsyncNext(tag, ok, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), limit));
  }
  void Wake() {
    MutexLock lock(loop.mutex);
    loop.Wake();
  }

  grpc::CompletionQueue queue;
  GrpcCompletionLoop loop{&queue};
};

struct Operation final : GrpcEvent {
  explicit Operation(LoopTest& test) : test(test) {}
  void Begin() { alarm.Set(&test.queue, gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(this)); }
  void OnEvent(bool ok) override {
    ended.push_back(ok);
    // Hangs if the mutex is held.
    test.Wake();
  }

  LoopTest& test;
  grpc::Alarm alarm;
  std::vector<bool> ended;
};

TEST_CASE_METHOD(LoopTest, "an operation that ends reaches its event, without the lock") {
  Operation operation(*this);
  operation.Begin();
  const auto take = [this](void** tag, bool* ok) { return Take(tag, ok); };
  CHECK(HandleNext(take) == Status::GOT_EVENT);
  CHECK(operation.ended == std::vector<bool>{true});
  // While an event is handled no thread waits, so that Wake() in OnEvent() has done nothing.
  CHECK(Next() == Status::TIMEOUT);
}

TEST_CASE_METHOD(LoopTest, "a thread that waits is woken once, however often it is asked for") {
  const auto woken = [this](void** tag, bool* ok) {
    Wake();
    Wake();
    return Take(tag, ok);
  };
  CHECK(HandleNext(woken) == Status::GOT_EVENT);
  CHECK(Next() == Status::TIMEOUT);
  // And again the next time.
  CHECK(HandleNext(woken) == Status::GOT_EVENT);
  CHECK(Next() == Status::TIMEOUT);
}

TEST_CASE_METHOD(LoopTest, "a thread that does not wait is not woken") {
  Wake();
  CHECK(Next() == Status::TIMEOUT);
  Wake();
  CHECK(Next() == Status::TIMEOUT);
}

TEST_CASE_METHOD(LoopTest, "a wake-up that comes as the wait ends is still taken") {
  // The thread is woken when it has stopped to look.
  const auto late = [this](void**, bool*) {
    Wake();
    return Status::TIMEOUT;
  };
  CHECK(HandleNext(late) == Status::TIMEOUT);
  const auto take = [this](void** tag, bool* ok) {
    // One is under way already.
    Wake();
    return Take(tag, ok);
  };
  CHECK(HandleNext(take) == Status::GOT_EVENT);
  CHECK(Next() == Status::TIMEOUT);
}

TEST_CASE_METHOD(LoopTest, "no work that another thread leaves stays") {
  constexpr int kTasks = 2000;
  int left = 0;  // under the lock
  std::thread other([&] {
    for (int i = 0; i < kTasks; ++i) {
      MutexLock lock(loop.mutex);
      ++left;
      loop.Wake();
    }
  });
  int done = 0;
  bool late = false;
  while (done < kTasks && !late) {
    MutexLock lock(loop.mutex);
    done += std::exchange(left, 0);
    if (done < kTasks) {
      const auto take = [this](void** tag, bool* ok) { return Take(tag, ok); };
      late = loop.HandleNext(take) != Status::GOT_EVENT;
    }
  }
  other.join();
  CHECK_FALSE(late);
}

TEST_CASE("a queue that was shut down is drained: events and wake-ups still come") {
  grpc::CompletionQueue queue;
  GrpcCompletionLoop loop(&queue);
  struct Counted final : GrpcEvent {
    void OnEvent(bool ok) override { (ok ? ended : cancelled) += 1; }
    int ended = 0, cancelled = 0;
  } event;
  grpc::Alarm never;
  never.Set(&queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(&event));
  MutexLock lock(loop.mutex);
  const auto late = [&](void**, bool*) {
    MutexLock inner(loop.mutex);
    loop.Wake();
    return Status::TIMEOUT;
  };
  CHECK(loop.HandleNext(late) == Status::TIMEOUT);
  queue.Shutdown();
  never.Cancel();
  const auto take = [&](void** tag, bool* ok) {
    return queue.Next(tag, ok) ? Status::GOT_EVENT : Status::SHUTDOWN;
  };
  int events = 0;
  while (loop.HandleNext(take) == Status::GOT_EVENT) ++events;
  CHECK(events == 2);
  CHECK(event.ended == 0);
  CHECK(event.cancelled == 1);
}

}  // namespace
}  // namespace weir
