#include "ps_server/process/ticker.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

struct Calls {
  void Count(int& what) {
    MutexLock lock(mutex);
    ++what;
    changed.NotifyAll();
  }
  int WaitFor(int& what, int times) {
    MutexLock lock(mutex);
    while (what < times) changed.Wait(mutex);
    return what;
  }

  Mutex mutex;
  CondVar changed;
  int ticks = 0, checks = 0;
};

TEST_CASE("It ticks again and again, and no more once it is stopped") {
  Calls calls;
  Ticker ticker;
  ticker.Start(
      milliseconds(1), [&] { calls.Count(calls.ticks); }, [] {});
  calls.WaitFor(calls.ticks, 3);
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
  ticker.Start(
      hours(1), [&] { calls.Count(calls.ticks); }, [&] { calls.Count(calls.checks); });
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
  Calls calls;
  Ticker ticker;
  ticker.Start(
      hours(1), [] {},
      [&] {
        ticker.CheckIn(milliseconds(0));
        calls.Count(calls.checks);
      });
  ticker.CheckIn(milliseconds(0));
  calls.WaitFor(calls.checks, 5);
  ticker.Stop();
}

}  // namespace
}  // namespace weir
