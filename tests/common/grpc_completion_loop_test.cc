#include "common/rpc/grpc_completion_loop.h"

#include <grpc/support/time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/shared_memory/doorbell.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

using Status = GrpcCompletionLoop::NextStatus;
using Steady = GrpcCompletionLoop::Steady;

Steady::time_point Soon() { return Steady::now() + std::chrono::seconds(30); }

// Outlives the loop, unless it is removed.
struct Work final : SharedWork {
  bool Ready() const override { return left > 0; }
  void Serve() override {
    --left;
    ++served;
    if (then) then();
  }
  std::atomic<int> left = 0;
  int served = 0;
  std::function<void()> then;
};

// How the thread waits.
struct Mode {
  bool shared = false;  // there is shared work
  std::chrono::microseconds busy_poll{0};
};

class LoopTest {
 public:
  explicit LoopTest(Mode mode = {}) : loop(&queue, mode.busy_poll) {
    REQUIRE(loop.PrepareToAdd().ok());
    if (mode.shared) loop.Add(&idle, bell());
  }
  ~LoopTest() {
    queue.Shutdown();
    while (Handle(Soon()) != Status::SHUTDOWN) {
    }
  }

  Status Handle(Steady::time_point until) {
    MutexLock lock(loop.mutex);
    return loop.HandleNext(until);
  }
  // Takes what is there already.
  Status Next() { return Handle(Steady::now()); }
  void Wake() {
    MutexLock lock(loop.mutex);
    loop.Wake();
  }
  // Waits; another thread wakes this one `times` times while it does, and runs `first` before that.
  Status HandleWoken(
      int times, const std::function<void()>& first = [] {}) {
    std::thread other;
    Status status;
    {
      MutexLock lock(loop.mutex);
      // It has the lock only once this thread waits.
      other = std::thread([&] {
        MutexLock lock(loop.mutex);
        first();
        for (int i = 0; i < times; ++i) loop.Wake();
      });
      status = loop.HandleNext(Soon());
    }
    other.join();
    return status;
  }
  Doorbell* bell() const { return bells->Bell(3); }

  const std::shared_ptr<DoorbellPage> bells = *DoorbellPage::Create();
  grpc::CompletionQueue queue;
  Work idle;
  GrpcCompletionLoop loop;
};

Mode AnyMode() {
  constexpr std::chrono::microseconds kBusy(200);
  const std::vector<Mode> modes = {{false, {}}, {true, {}}, {false, kBusy}, {true, kBusy}};
  return modes[GENERATE(range(size_t{0}, size_t{4}))];
}

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

struct Counted final : GrpcEvent {
  void OnEvent(bool ok) override { (ok ? ended : cancelled) += 1; }
  int ended = 0, cancelled = 0;
};

TEST_CASE("an operation that ends reaches its event, without the lock") {
  LoopTest test(AnyMode());
  Operation operation(test);
  operation.Begin();
  while (operation.ended.empty()) REQUIRE(test.Handle(Soon()) == Status::GOT_EVENT);
  CHECK(operation.ended == std::vector<bool>{true});
  // While an event is handled no thread waits, so that Wake() in OnEvent() has done nothing.
  CHECK(test.Next() == Status::TIMEOUT);
}

TEST_CASE("an operation that ends while the thread waits ends the wait") {
  LoopTest test(AnyMode());
  Operation operation(test);
  CHECK(test.HandleWoken(0, [&] { operation.Begin(); }) == Status::GOT_EVENT);
  while (operation.ended.empty()) REQUIRE(test.Handle(Soon()) == Status::GOT_EVENT);
}

TEST_CASE("a thread that waits is woken once, however often it is asked for") {
  LoopTest test(AnyMode());
  CHECK(test.HandleWoken(2) == Status::GOT_EVENT);
  CHECK(test.Next() == Status::TIMEOUT);
  // And again the next time.
  CHECK(test.HandleWoken(2) == Status::GOT_EVENT);
  CHECK(test.Next() == Status::TIMEOUT);
}

TEST_CASE("a thread that does not wait is not woken") {
  LoopTest test(AnyMode());
  test.Wake();
  CHECK(test.Next() == Status::TIMEOUT);
  test.Wake();
  CHECK(test.Next() == Status::TIMEOUT);
}

TEST_CASE("a wait ends by itself") {
  LoopTest test(AnyMode());
  const Steady::time_point until = Steady::now() + std::chrono::milliseconds(2);
  while (Steady::now() < until) CHECK(test.Handle(until) == Status::TIMEOUT);
}

TEST_CASE("a wake-up that comes as the wait ends is still taken") {
  LoopTest test;
  Operation operation(test);
  // The operation's event ends the wait, and the wake-up comes before the thread has the lock again.
  CHECK(test.HandleWoken(1, [&] { operation.Begin(); }) == Status::GOT_EVENT);
  CHECK(operation.ended.size() == 1);
  // One is under way already.
  CHECK(test.HandleWoken(1) == Status::GOT_EVENT);
  CHECK(test.Next() == Status::TIMEOUT);
  CHECK(test.HandleWoken(1) == Status::GOT_EVENT);
}

TEST_CASE("no work that another thread leaves stays") {
  LoopTest test(AnyMode());
  constexpr int kTasks = 2000;
  int left = 0;  // under the lock
  std::thread other([&] {
    for (int i = 0; i < kTasks; ++i) {
      MutexLock lock(test.loop.mutex);
      ++left;
      test.loop.Wake();
    }
  });
  int done = 0;
  bool late = false;
  while (done < kTasks && !late) {
    MutexLock lock(test.loop.mutex);
    done += std::exchange(left, 0);
    if (done < kTasks) late = test.loop.HandleNext(Soon()) != Status::GOT_EVENT;
  }
  other.join();
  CHECK_FALSE(late);
}

TEST_CASE("a queue that was shut down is drained: events and wake-ups still come") {
  LoopTest test;
  Counted event;
  grpc::Alarm never;
  never.Set(&test.queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(&event));
  Operation operation(test);
  // The wake-up stays in the queue.
  CHECK(test.HandleWoken(1, [&] { operation.Begin(); }) == Status::GOT_EVENT);
  test.queue.Shutdown();
  never.Cancel();
  int events = 0;
  while (test.Handle(Soon()) == Status::GOT_EVENT) ++events;
  CHECK(events == 2);
  CHECK(event.ended == 0);
  CHECK(event.cancelled == 1);
}

TEST_CASE("a queue that was shut down is drained, also where there is shared work") {
  LoopTest test({true, {}});
  Counted event;
  grpc::Alarm never, now;
  never.Set(&test.queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(&event));
  now.Set(&test.queue, gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(&event));
  const bool removed = GENERATE(false, true);
  if (removed) test.loop.Remove(&test.idle);
  test.queue.Shutdown();
  never.Cancel();
  Status status;
  while ((status = test.Handle(Soon())) == Status::GOT_EVENT) {
  }
  CHECK(status == Status::SHUTDOWN);
  CHECK(event.ended == 1);
  CHECK(event.cancelled == 1);
  CHECK(test.Next() == Status::SHUTDOWN);
}

// ---- shared work

TEST_CASE("a wake-up under way when the first shared work comes is no event of that work") {
  Work work;
  LoopTest test;
  Operation operation(test);
  CHECK(test.HandleWoken(1, [&] { operation.Begin(); }) == Status::GOT_EVENT);
  test.loop.Add(&work, test.bell());
  // The wake-up's event is passed on.
  CHECK(test.Handle(Soon()) == Status::GOT_EVENT);
  CHECK(test.Next() != Status::SHUTDOWN);
  CHECK(test.HandleWoken(1) == Status::GOT_EVENT);
  CHECK(work.served == 0);
}

TEST_CASE("shared work is served without the lock: what is there, and what comes when the bell rings") {
  Work work;
  LoopTest test({true, GENERATE(std::chrono::microseconds(0), std::chrono::microseconds(200))});
  work.then = [&] { test.Wake(); };  // hangs if the mutex is held
  work.left = 2;
  test.loop.Add(&work, test.bell());
  CHECK(test.Next() == Status::GOT_EVENT);
  CHECK(test.Next() == Status::GOT_EVENT);
  CHECK(work.served == 2);
  CHECK(test.Next() == Status::TIMEOUT);
  const auto other_mapping = DoorbellPage::Open(UniqueFd(dup(test.bells->fd())));
  REQUIRE(other_mapping.ok());
  for (int i = 3; i < 1000; ++i) {
    std::thread other([&] {
      work.left = 1;
      (*other_mapping)->Bell(3)->Ring();
    });
    CHECK(test.Handle(Soon()) == Status::GOT_EVENT);
    CHECK(work.served == i);
    other.join();
  }
}

TEST_CASE("work that removes itself, or other work, is not looked at again") {
  auto first = std::make_unique<Work>(), second = std::make_unique<Work>(), third = std::make_unique<Work>();
  Work last, added;
  LoopTest test;
  for (Work* work : {first.get(), second.get(), third.get(), &last}) {
    work->left = 1;
    test.loop.Add(work, test.bell());
  }
  second->then = [&] {
    test.loop.Remove(first.get());
    test.loop.Remove(third.get());
    test.loop.Remove(second.get());
    first = nullptr;
    third = nullptr;
    added.left = 1;
    test.loop.Add(&added, test.bell());
    // The function goes with its owner, and so runs nothing more.
    const auto gone = std::move(second);
  };
  first->then = [&] { first->left = 1; };
  CHECK(test.Next() == Status::GOT_EVENT);
  CHECK(second == nullptr);
  // Those that stay have had their turn, and what was added, too.
  CHECK(last.served == 1);
  CHECK(added.served == 1);
  CHECK(test.Next() == Status::TIMEOUT);
  test.loop.Remove(&last);
  last.left = 1;
  CHECK(test.Next() == Status::TIMEOUT);
  CHECK(last.served == 1);
  // Without any work the loop is woken as before.
  test.loop.Remove(&added);
  CHECK(test.HandleWoken(1) == Status::GOT_EVENT);
}

TEST_CASE("work without end holds up neither other work nor events") {
  Work endless, other;
  LoopTest test;
  endless.left = std::numeric_limits<int>::max();
  other.left = 10;
  test.loop.Add(&endless, test.bell());
  test.loop.Add(&other, test.bell());
  Operation operation(test);
  operation.Begin();
  const Steady::time_point until = Soon();
  while (operation.ended.empty() && Steady::now() < until) CHECK(test.Next() == Status::GOT_EVENT);
  CHECK(operation.ended.size() == 1);
  while (other.left > 0 && Steady::now() < until) CHECK(test.Next() == Status::GOT_EVENT);
  CHECK(other.served == 10);
  CHECK(endless.served >= 10);
}

TEST_CASE("no work is lost that comes in shared memory, with a wake-up and as an event at once") {
  constexpr int kRounds = 2000;
  Work work;
  LoopTest test({true, GENERATE(std::chrono::microseconds(0), std::chrono::microseconds(20))});
  test.loop.Add(&work, test.bell());
  std::thread ringer([&] {
    for (int i = 0; i < kRounds; ++i) {
      ++work.left;
      test.bell()->Ring();
    }
  });
  int left = 0;  // under the lock
  std::thread waker([&] {
    for (int i = 0; i < kRounds; ++i) {
      MutexLock lock(test.loop.mutex);
      ++left;
      test.loop.Wake();
    }
  });
  std::vector<grpc::Alarm> alarms(kRounds);
  Counted event;
  std::thread caller([&] {
    for (grpc::Alarm& alarm : alarms) {
      alarm.Set(&test.queue, gpr_time_0(GPR_CLOCK_MONOTONIC), static_cast<GrpcEvent*>(&event));
    }
  });
  int done = 0;
  bool late = false;
  while ((done < kRounds || work.served < kRounds || event.ended < kRounds) && !late) {
    MutexLock lock(test.loop.mutex);
    done += std::exchange(left, 0);
    if (done < kRounds || work.served < kRounds || event.ended < kRounds) {
      late = test.loop.HandleNext(Soon()) != Status::GOT_EVENT;
    }
  }
  ringer.join();
  waker.join();
  caller.join();
  CHECK_FALSE(late);
  CHECK(done == kRounds);
  CHECK(work.served == kRounds);
  CHECK(event.ended == kRounds);
}

}  // namespace
}  // namespace weir
