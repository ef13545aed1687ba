#include <catch2/catch.hpp>

#include "ps_server/coordinator/progress/job_progress.h"

namespace weir {
namespace {

using Parts = std::vector<uint32_t>;

v1::StepStaged Staged(uint64_t step, const Parts& parts, const Parts& refused = {},
                      const std::string& reason = "") {
  v1::StepStaged staged;
  staged.set_step(step);
  for (uint32_t part : parts) staged.add_parts(part);
  for (uint32_t part : refused) staged.add_refused_parts(part);
  staged.set_reason(reason);
  return staged;
}

Parts PartsOf(const StepCommitter::Commit& commit) {
  return {commit.step.parts().begin(), commit.step.parts().end()};
}

TEST_CASE("A step commits when every shard has every part") {
  StepCommitter steps(0);
  CHECK_FALSE(steps.Ready(2, 2).has_value());
  steps.OnStaged(0, Staged(0, {0, 1}));
  CHECK_FALSE(steps.Ready(2, 2).has_value());
  steps.OnStaged(1, Staged(0, {1}));
  CHECK_FALSE(steps.Ready(2, 2).has_value());
  steps.OnStaged(1, Staged(0, {1, 0}));
  const auto commit = steps.Ready(2, 2);
  REQUIRE(commit.has_value());
  CHECK(commit->step.step() == 0);
  CHECK(PartsOf(*commit) == Parts{0, 1});
  CHECK(commit->refused.empty());
  steps.Committed(commit->step);
  CHECK(steps.committed() == 1);
  CHECK_FALSE(steps.Ready(2, 2).has_value());
}

TEST_CASE("What was staged of another step does not count") {
  StepCommitter steps(0);
  steps.GoTo(3);
  steps.OnStaged(0, Staged(2, {0}));
  CHECK_FALSE(steps.Ready(1, 1).has_value());
  steps.OnStaged(0, Staged(3, {0}));
  CHECK(steps.Ready(1, 1)->step.step() == 3);
}

TEST_CASE("With backup workers a step commits without its slowest parts, and takes no more than it needs") {
  StepCommitter steps(1);
  steps.OnStaged(0, Staged(0, {2, 0}));
  steps.OnStaged(1, Staged(0, {0, 1}));
  CHECK_FALSE(steps.Ready(3, 2).has_value());
  steps.OnStaged(1, Staged(0, {0, 1, 2}));
  CHECK(PartsOf(*steps.Ready(3, 2)) == Parts{0, 2});
  steps.OnStaged(0, Staged(0, {0, 1, 2}));
  CHECK(PartsOf(*steps.Ready(3, 2)) == Parts{0, 1});
}

TEST_CASE("A part that any shard refused is in no commit, and the first shard's reason is told") {
  StepCommitter steps(0);
  steps.OnStaged(0, Staged(0, {0, 1}));
  steps.OnStaged(1, Staged(0, {0, 1}, {1}, "w[3] is NaN"));
  const auto commit = steps.Ready(2, 2);
  REQUIRE(commit.has_value());
  CHECK(PartsOf(*commit) == Parts{0});
  CHECK(commit->refused == std::set<uint32_t>{1});
  CHECK(commit->reason == "w[3] is NaN");
}

TEST_CASE("A shard that is lost takes what it had staged along") {
  StepCommitter steps(0);
  steps.OnStaged(0, Staged(0, {0}));
  steps.OnStaged(1, Staged(0, {0}));
  steps.OnLost(1);
  CHECK_FALSE(steps.Ready(1, 2).has_value());
}

TEST_CASE("Pushes of committed steps are known until shard 0 has applied them") {
  StepCommitter steps(1);
  for (uint64_t step = 0; step < 3; ++step) {
    steps.OnStaged(0, Staged(step, {0, 1}));
    steps.Committed(steps.Ready(3, 1)->step);
  }
  CHECK(steps.PushesSince(0) == 6);
  CHECK(steps.PushesSince(2) == 2);
  steps.OnApplied(2);
  CHECK(steps.PushesSince(0) == 2);
  steps.OnStaged(0, Staged(1, {0, 1}));
  steps.GoTo(1);
  CHECK(steps.committed() == 1);
  CHECK(steps.PushesSince(0) == 0);
  CHECK_FALSE(steps.Ready(3, 1).has_value());
}

}  // namespace
}  // namespace weir
