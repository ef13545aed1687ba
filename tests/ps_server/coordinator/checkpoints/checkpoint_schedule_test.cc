#include "catch2/catch.hpp"
#include "ps_server/coordinator/checkpoints/checkpoints.h"

namespace weir {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST_CASE("By itself: Young's interval of what the last one took, within limits") {
  CheckpointSchedule schedule({}, kStart);
  CHECK(schedule.interval() == absl::Seconds(1));  // the first checkpoint shows how long one takes
  CHECK_FALSE(schedule.Due(At(0.9), 5));
  CHECK(schedule.Due(At(1), 5));
  const auto after = [&](double took) {
    schedule.Begun(kStart, 5);
    schedule.Completed(At(took));
    return absl::ToDoubleSeconds(schedule.interval());
  };
  CHECK(after(0.001) == 1);
  CHECK(after(0.3) == Approx(6));  // sqrt(2 * 0.3 * 60)
  CHECK(after(1) == Approx(10.954).epsilon(0.001));
  CHECK(after(5) == Approx(50));  // a tenth of the time
  CHECK(after(20) == Approx(200));
  CHECK_FALSE(schedule.Due(At(199), 6));
  CHECK(schedule.Due(At(200), 6));
  CHECK_FALSE(schedule.Due(At(200), 5));  // no new step
}

TEST_CASE("By steps, by seconds, or by whichever comes first") {
  v1::CheckpointConfig config;
  config.set_every_steps(10);
  CheckpointSchedule steps(config, kStart);
  CHECK_FALSE(steps.Due(At(10'000), 9));
  CHECK(steps.Due(At(0), 10));
  steps.Begun(At(0), 10);
  CHECK_FALSE(steps.Due(At(0), 19));
  CHECK(steps.Due(At(0), 25));
  config.set_every_seconds(30);
  CheckpointSchedule both(config, kStart);
  CHECK(both.Due(At(1), 10));
  CHECK(both.Due(At(30), 1));
  CHECK_FALSE(both.Due(At(29), 9));
}

TEST_CASE("One that failed is tried again a little later, a job that went back counts from there") {
  v1::CheckpointConfig config;
  config.set_every_steps(10);
  CheckpointSchedule schedule(config, kStart);
  schedule.Begun(At(1), 10);
  schedule.Failed(At(2));
  CHECK_FALSE(schedule.Due(At(6), 11));
  CHECK(schedule.Due(At(7), 11));
  schedule.Begun(At(7), 11);
  CHECK_FALSE(schedule.Due(At(7), 12));
  schedule.Begun(At(8), 5);
  CHECK_FALSE(schedule.Due(At(8), 14));
  CHECK(schedule.Due(At(8), 15));
}

}  // namespace
}  // namespace weir
