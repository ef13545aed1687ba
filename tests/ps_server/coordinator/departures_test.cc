#include "ps_server/coordinator/departures.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

TEST_CASE("Who left and who was lost is shown, a hundred at most") {
  Departures departures;
  departures.Add("worker:0", 1, /*left=*/true);
  departures.Add("worker:1", 2, /*left=*/false);
  CHECK(departures.Left(1));
  CHECK_FALSE(departures.Left(2));
  CHECK_FALSE(departures.Left(3));
  REQUIRE(departures.shown().size() == 2);
  CHECK(departures.shown()[1].task() == "worker:1");
  CHECK(departures.shown()[1].phase() == v1::TASK_LOST);
  departures.ForgetLeft();
  REQUIRE(departures.shown().size() == 1);
  CHECK(departures.shown()[0].incarnation() == 2);
  for (uint64_t i = 0; i < 100; ++i) departures.Add(absl::StrCat("worker:", i), 10 + i, /*left=*/true);
  CHECK(departures.shown().size() == 100);
  CHECK(departures.shown().front().incarnation() == 10);
}

TEST_CASE("Members up to the last fence are out for its reason") {
  Departures departures;
  CHECK(departures.WhyOut(0).empty());
  departures.Fence(5, "the job goes back");
  CHECK(departures.WhyOut(5) == "the job goes back");
  CHECK(departures.WhyOut(6).empty());
  departures.Fence(8, "the job is being saved");
  CHECK(departures.WhyOut(5) == "the job is being saved");
}

TEST_CASE("An instance is refused until 4,096 others were") {
  Departures departures;
  CHECK_FALSE(departures.Refuses(1));
  departures.Refuse(1);
  for (uint64_t instance = 2; instance <= 4096; ++instance) departures.Refuse(instance);
  CHECK(departures.Refuses(1));
  departures.Refuse(4097);
  CHECK_FALSE(departures.Refuses(1));
  CHECK(departures.Refuses(2));
}

}  // namespace
}  // namespace weir
