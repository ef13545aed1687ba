#include "common/telemetry/log_limit.h"

#include <catch2/catch.hpp>

namespace weir {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST_CASE("One line in an interval, with the number of those that were left out") {
  LogLimit limit(absl::Seconds(10));
  CHECK(limit.Due(kStart));
  CHECK(limit.left_out() == 0);
  CHECK_FALSE(limit.Due(kStart));
  CHECK_FALSE(limit.Due(kStart + absl::Seconds(9)));
  CHECK(limit.Due(kStart + absl::Seconds(10)));
  CHECK(limit.left_out() == 2);
  CHECK(limit.Due(kStart + absl::Seconds(30)));
  CHECK(limit.left_out() == 0);
}

TEST_CASE("Another line may begin the interval") {
  LogLimit limit(absl::Seconds(10));
  limit.Begin(kStart);
  CHECK_FALSE(limit.Due(kStart + absl::Seconds(9)));
  limit.Begin(kStart + absl::Seconds(9));
  CHECK_FALSE(limit.Due(kStart + absl::Seconds(18)));
  CHECK(limit.Due(kStart + absl::Seconds(19)));
}

}  // namespace
}  // namespace weir
