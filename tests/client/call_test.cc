#include "client/call.h"

#include <string>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;
using std::chrono::seconds;

const absl::Status kGone = absl::UnavailableError("connection refused");

// A call with 300 s in all and 5 s without its peer, in a process that a test can stop.
struct Process {
  ManualClock real;
  AwakeClock awake{real};
  CallRetry retry{"the pull at clock 7", "ps:1 at 10.0.0.1:2222", {seconds(300), seconds(5)}, awake, real};

  void Run(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= AwakeClock::kTick) {
      real.Advance(AwakeClock::kTick);
      awake.Tick();
    }
  }
  void Stop(absl::Duration time) { real.Advance(time); }
  // A try that fails after this long.
  bool GivesUp(absl::Duration after = absl::ZeroDuration()) {
    retry.TryStarts();
    Run(after);
    return !retry.Judge(kGone).error.ok();
  }
};

TEST_CASE("A call gives its peer up when it could not be reached for so long") {
  Process process;
  CHECK_FALSE(process.GivesUp());
  process.Run(absl::Seconds(4.9));
  CHECK_FALSE(process.GivesUp());
  process.Run(absl::Seconds(0.1));
  process.retry.TryStarts();
  const auto verdict = process.retry.Judge(kGone);
  CHECK(verdict.error == absl::UnavailableError("ps:1 at 10.0.0.1:2222 was lost: connection refused"));
}

TEST_CASE("Time for which the process was stopped is not time for which a call has tried") {
  Process process;
  CHECK_FALSE(process.GivesUp());
  process.Run(absl::Seconds(2));
  process.Stop(absl::Seconds(1000));
  CHECK_FALSE(process.GivesUp());
  CHECK(process.retry.left() > seconds(297));
  process.Run(absl::Seconds(2));
  CHECK_FALSE(process.GivesUp());
  process.Run(absl::Seconds(1));
  CHECK(process.GivesUp());
}

TEST_CASE("A try in which the process was stopped decides nothing, the next one does") {
  Process process;
  CHECK_FALSE(process.GivesUp());
  process.Run(absl::Seconds(4.9));
  process.retry.TryStarts();
  process.Stop(absl::Seconds(15));
  process.Run(absl::Seconds(0.2));
  const auto verdict = process.retry.Judge(kGone);
  CHECK(verdict.error.ok());
  CHECK(verdict.wait == seconds(0));
  CHECK(process.GivesUp());
}

TEST_CASE(
    "A clock of an awake process runs with the real one, and no further between two ticks than it says") {
  ManualClock real;
  AwakeClock awake(real);
  const absl::Time start = awake.Now();
  CHECK(start == real.Now());
  real.Advance(AwakeClock::kMost);
  CHECK(awake.Now() == start + AwakeClock::kMost);
  const Stretch stretch(awake, real);
  real.Advance(absl::Seconds(15));
  CHECK(awake.Now() == start + AwakeClock::kMost);
  CHECK(stretch.interrupted());
  awake.Tick();
  real.Advance(AwakeClock::kTick);
  CHECK(awake.Now() == start + AwakeClock::kMost + AwakeClock::kTick);
  CHECK(stretch.length() == AwakeClock::kTick);
  CHECK_FALSE(Stretch(awake, real).interrupted());
}

}  // namespace
}  // namespace weir
