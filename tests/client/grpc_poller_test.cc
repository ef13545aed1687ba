#include "client/grpc/grpc_poller.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/threads/mutex.h"
#include "tests/common/no_threads.h"

namespace weir {
namespace {

using Clock = GrpcPoller::Steady;
using std::chrono::milliseconds;

TEST_CASE("timers run in order, on one thread, and not before their time") {
  const std::shared_ptr<GrpcPoller> held = GrpcPoller::Start(std::chrono::microseconds(0)).value();
  GrpcPoller& poller = *held;
  const Clock::time_point start = Clock::now();
  std::vector<std::string> order;
  std::vector<Clock::time_point> times;
  Promise<int> last;
  const auto note = [&](const char* what) {
    order.push_back(what);
    times.push_back(Clock::now());
  };
  // By value: the waiting thread may be gone before Set() returns.
  poller.RunAt(start + milliseconds(40), [&note, last]() mutable {
    note("late");
    last.Set(1);
  });
  const GrpcPoller::Timer never = poller.RunAt(start + milliseconds(20), [&] { note("never"); });
  poller.RunAt(start + milliseconds(30), [&] { note("early"); });
  poller.Post([&] {
    note("soon");
    poller.Cancel(never);
    poller.Post([&] { note("then"); });
  });
  REQUIRE(last.future().Get().ok());
  CHECK(order == std::vector<std::string>{"soon", "then", "early", "late"});
  CHECK(times[2] >= start + milliseconds(30));
  CHECK(times[3] >= start + milliseconds(40));
  poller.Cancel(never);
}

TEST_CASE("a thread that waits for a result brings it about itself") {
  const int busy_us = GENERATE(0, 50);
  const std::shared_ptr<GrpcPoller> held = GrpcPoller::Start(std::chrono::microseconds{busy_us}).value();
  GrpcPoller& poller = *held;
  int here = 0;
  for (int i = 0; i < 100; ++i) {
    Promise<std::thread::id> promise(poller.driver());
    poller.RunAt(Clock::now() + milliseconds(2),
                 [promise]() mutable { promise.Set(std::this_thread::get_id()); });
    here += promise.future().Get().value() == std::this_thread::get_id() ? 1 : 0;
  }
  // Nearly always: on a busy machine the poller's own thread may be first sometimes.
  CHECK(here >= 10);
}

TEST_CASE("results come without anybody who waits, and to all who do") {
  const std::shared_ptr<GrpcPoller> held = GrpcPoller::Start(std::chrono::microseconds(0)).value();
  GrpcPoller& poller = *held;
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        Promise<int> promise(poller.driver());
        poller.RunAt(Clock::now() + std::chrono::microseconds(100 * ((t + i) % 5)),
                     [promise, i]() mutable { promise.Set(i); });
        if (t == 0) {
          // Waits without driving the poller.
          while (!promise.future().ready()) std::this_thread::yield();
        }
        ready += promise.future().Get().value() == i ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(ready == 400);
}

TEST_CASE("a thread that works on calls stops at its deadline, whatever the poller waits for") {
  const std::shared_ptr<GrpcPoller> held = GrpcPoller::Start(std::chrono::microseconds(0)).value();
  GrpcPoller& poller = *held;
  Promise<int> promise(poller.driver());
  // An hour without an event, but for the poller's own look each second. A busy machine may delay a try.
  Clock::duration late = Clock::duration::max();
  for (int attempt = 0; attempt < 5 && late >= milliseconds(500); ++attempt) {
    const Clock::time_point deadline = Clock::now() + milliseconds(20);
    const auto over = [&] { return promise.future().ready() || Clock::now() >= deadline; };
    promise.future().WaitUntil(
        over, [&] { std::this_thread::sleep_until(deadline); }, deadline);
    late = Clock::now() - deadline;
    CHECK(late >= Clock::duration::zero());
  }
  CHECK(late < milliseconds(500));
  poller.Post([promise]() mutable { promise.Set(7); });
  CHECK(promise.future().Get().value() == 7);
}

TEST_CASE("where the system gives no thread there is no poller, and no bells") {
  const std::shared_ptr<GrpcPoller> poller = GrpcPoller::Start(std::chrono::microseconds(0)).value();
  {
    const NoThreads none;
    CHECK(absl::IsInternal(GrpcPoller::Start(std::chrono::microseconds(0)).status()));
    CHECK(absl::IsInternal(GrpcPoller::Shared(std::chrono::microseconds(1), /*shared_work=*/true).status()));
    CHECK(absl::IsInternal(poller->bells().status()));
  }
  CHECK(GrpcPoller::Shared(std::chrono::microseconds(1), /*shared_work=*/true).ok());
  CHECK(poller->bells().ok());
}

TEST_CASE("a result outlives the poller that brought it") {
  Promise<int> promise;
  {
    const std::shared_ptr<GrpcPoller> held = GrpcPoller::Start(std::chrono::microseconds(0)).value();
    GrpcPoller& poller = *held;
    promise = Promise<int>(poller.driver());
    poller.Post([promise]() mutable { promise.Set(7); });
    CHECK(promise.future().Get().value() == 7);
  }
  CHECK(promise.future().Get().value() == 7);
}

}  // namespace
}  // namespace weir
