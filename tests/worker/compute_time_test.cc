#include <chrono>
#include <functional>
#include <utility>

#include "catch2/catch.hpp"
#include "worker/replicas.h"

namespace weir {
namespace {

using Clock = ComputeTime::Clock;
using std::chrono::seconds;

TEST_CASE("The time of computations, with the one under way") {
  ComputeTime time;
  const Clock::time_point start;
  CHECK(time.Seconds(start) == 0);
  time.Start(start);
  CHECK(time.Seconds(start + seconds(2)) == 2);
  time.Start(start + seconds(1));  // changes nothing
  time.Stop(start + seconds(3));
  CHECK(time.Seconds(start + seconds(9)) == 3);
  time.Stop(start + seconds(9));
  time.Start(start + seconds(10));
  CHECK(time.Seconds(start + seconds(11)) == 4);
}

// Whether the time goes on.
bool Runs(const ComputeTime& time) {
  const Clock::time_point now = Clock::now();
  return time.Seconds(now + seconds(100)) > time.Seconds(now) + 99;
}

TEST_CASE("A gradient's time is that of its computation, without the waits for weights") {
  ComputeTime time;
  int waits = 0;
  Traffic traffic;
  const auto inner = [&](const Traffic& timed) {
    CHECK(Runs(time));
    REQUIRE(timed.await_weights);
    CHECK(timed.await_weights(0, 2).ok());
    CHECK(Runs(time));
    CHECK(timed.await_weights(2, 3).message() == "lost");
    CHECK(Runs(time));
    CHECK(timed.forward_done().ok());
    return 2.5;
  };
  traffic.await_weights = [&](size_t first, size_t end) {
    CHECK_FALSE(Runs(time));
    ++waits;
    if (waits == 1) {
      CHECK(first == 0);
      return absl::OkStatus();
    }
    CHECK(end == 3);
    return absl::UnavailableError("lost");
  };
  bool forward = false;
  traffic.forward_done = [&] {
    forward = true;
    return absl::OkStatus();
  };
  CHECK_FALSE(Runs(time));
  CHECK(CountCompute(&time, traffic, inner).value() == 2.5);
  CHECK_FALSE(Runs(time));
  CHECK(waits == 2);
  CHECK(forward);
}

TEST_CASE("While any replica waits the process does not compute; without new weights none waits") {
  ComputeTime time;
  Traffic traffic;
  std::function<void()> within;
  traffic.await_weights = [&](size_t, size_t) {
    if (within) std::exchange(within, nullptr)();
    CHECK_FALSE(Runs(time));
    return absl::OkStatus();
  };
  const auto inner = [&](const Traffic& timed) {
    // The second wait begins and ends during the first.
    within = [&] { CHECK(timed.await_weights(0, 1).ok()); };
    CHECK(timed.await_weights(0, 1).ok());
    CHECK(Runs(time));
    return 2.5;
  };
  CHECK(CountCompute(&time, traffic, inner).ok());

  const auto old = [&](const Traffic& same) {
    CHECK_FALSE(same.await_weights);
    return 2.5;
  };
  CHECK(CountCompute(&time, {}, old).ok());
}

}  // namespace
}  // namespace weir
