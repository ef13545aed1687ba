#include <string>

#include "catch2/catch.hpp"
#include "ps_server/process/server_threads.h"
#include "tests/common/no_threads.h"

namespace weir {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// For what takes milliseconds.
constexpr std::chrono::seconds kLimit{60};

struct Calls {
  void Count(int& what) {
    MutexLock lock(mutex);
    ++what;
    changed.NotifyAll();
  }
  // Returns how often it was called, in the end: fewer times if they do not come.
  int WaitFor(int& what, int times) {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    MutexLock lock(mutex);
    while (what < times && changed.WaitUntil(mutex, deadline)) {
    }
    return what;
  }

  Mutex mutex;
  CondVar changed;
  int ticks = 0, checks = 0;
};

TEST_CASE("It ticks again and again, and no more once it is stopped") {
  Calls calls;
  Ticker ticker;
  REQUIRE(ticker
              .Start(
                  milliseconds(1), [&] { calls.Count(calls.ticks); }, [] {})
              .ok());
  CHECK(calls.WaitFor(calls.ticks, 3) >= 3);
  ticker.Stop();
  const int ticks = calls.ticks;
  ticker.CheckIn(milliseconds(0));
  ticker.Stop();
  CHECK(calls.ticks == ticks);
}

TEST_CASE("A check that is asked for comes before the next tick, once, at the earliest time asked for") {
  Calls calls;
  Ticker ticker;
  ticker.CheckIn(milliseconds(1));
  REQUIRE(ticker
              .Start(
                  hours(1), [&] { calls.Count(calls.ticks); }, [&] { calls.Count(calls.checks); })
              .ok());
  CHECK(calls.WaitFor(calls.checks, 1) == 1);
  ticker.CheckIn(hours(1));
  ticker.CheckIn(milliseconds(1));
  ticker.CheckIn(hours(1));
  CHECK(calls.WaitFor(calls.checks, 2) == 2);
  ticker.Stop();
  CHECK(calls.ticks == 0);
  CHECK(calls.checks == 2);
}

TEST_CASE("A check may ask for the next one") {
  // Not destroyed if the test fails: a check that waits for its own ticker would hold up the end.
  auto* const calls = new Calls;
  auto* const ticker = new Ticker;
  REQUIRE(ticker
              ->Start(
                  hours(1), [] {},
                  [calls, ticker] {
                    ticker->CheckIn(milliseconds(0));
                    calls->Count(calls->checks);
                  })
              .ok());
  ticker->CheckIn(milliseconds(0));
  REQUIRE(calls->WaitFor(calls->checks, 5) >= 5);
  delete ticker;
  delete calls;
}

TEST_CASE("Where the system gives no thread, it does not start, and says why") {
  Ticker ticker;
  const NoThreads none;
  const absl::Status status = ticker.Start(
      hours(1), [] {}, [] {});
  CHECK(absl::IsInternal(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("gives no thread to watch over deadlines"));
}

}  // namespace
}  // namespace weir
