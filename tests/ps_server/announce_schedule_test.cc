#include <catch2/catch.hpp>

#include "ps_server/process/coordinator_watch.h"

namespace weir {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

v1::JobConfig Saved(double lease_seconds, double start_seconds) {
  v1::JobConfig config;
  config.mutable_checkpoint()->set_directory("/runs/7");
  config.mutable_cluster()->set_lease_seconds(lease_seconds);
  config.mutable_cluster()->set_start_seconds(start_seconds);
  return config;
}

// The time from one answered call to the next one.
absl::Duration Interval(const v1::JobConfig& config, bool attached) {
  AnnounceSchedule schedule(config);
  schedule.OnBegin(kStart);
  schedule.OnTaken();
  absl::Duration wait;
  while (!schedule.Due(kStart + wait, attached)) wait += absl::Milliseconds(50);
  return wait;
}

TEST_CASE("Without a coordinator: at once, and then less and less often while ps:0 does not answer") {
  AnnounceSchedule schedule(Saved(10, 300));
  absl::Time now = kStart;
  for (const int64_t wait : {0, 50, 100, 200, 400, 800, 1000, 1000}) {
    if (wait > 0) CHECK_FALSE(schedule.Due(now + absl::Milliseconds(wait - 1), false));
    now += absl::Milliseconds(wait);
    REQUIRE(schedule.Due(now, false));
    schedule.OnBegin(now);
    CHECK_FALSE(schedule.Due(now + absl::Hours(1), false));  // one call at a time
    CHECK_FALSE(schedule.Due(now + absl::Hours(1), true));
    schedule.OnNoAnswer();
  }
  schedule.OnBegin(now);
  schedule.OnTaken();
  CHECK_FALSE(schedule.Due(now + absl::Milliseconds(499), false));
  CHECK(schedule.Due(now + absl::Milliseconds(500), false));
  // It begins anew.
  schedule.OnBegin(now);
  schedule.OnNoAnswer();
  CHECK(schedule.Due(now + absl::Milliseconds(50), false));
}

TEST_CASE("With a coordinator: once in a lease, and often enough for the start of the job") {
  CHECK(Interval(Saved(10, 300), true) == absl::Seconds(10));
  CHECK(Interval(Saved(60, 8), true) == absl::Seconds(2));
  CHECK(Interval(Saved(0.1, 300), true) == absl::Milliseconds(500));
  // No answer is no reason for more connections.
  AnnounceSchedule schedule(Saved(10, 300));
  schedule.OnBegin(kStart);
  schedule.OnNoAnswer();
  CHECK_FALSE(schedule.Due(kStart + absl::Seconds(9), true));
  CHECK(schedule.Due(kStart + absl::Seconds(10), true));
}

TEST_CASE("With a coordinator that nobody can replace: never") {
  v1::JobConfig config = Saved(10, 300);
  config.clear_checkpoint();
  CHECK_FALSE(AnnounceSchedule(config).Due(kStart, true));
  CHECK(AnnounceSchedule(config).Due(kStart, false));
  CHECK(Interval(config, false) == absl::Milliseconds(500));
}

}  // namespace
}  // namespace weir
