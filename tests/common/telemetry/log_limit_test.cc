#include <catch2/catch.hpp>

#include "common/telemetry/logging.h"

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

TEST_CASE("Each key has its own lines, until there are too many keys") {
  LogLimits limits(absl::Minutes(1), 2);
  CHECK(limits.Due("a", kStart) == 0);
  CHECK(limits.Due("b", kStart + absl::Seconds(30)) == 0);
  CHECK_FALSE(limits.Due("a", kStart + absl::Seconds(59)).has_value());

  // c and d share a line. a has its own still, since it has been there before.
  CHECK(limits.Due("c", kStart + absl::Seconds(59)) == 0);
  CHECK_FALSE(limits.Due("d", kStart + absl::Seconds(59)).has_value());
  CHECK(limits.Due("a", kStart + absl::Seconds(60)) == 1);

  // b is over and gives its place to d.
  CHECK(limits.Due("d", kStart + absl::Seconds(119)) == 0);
  CHECK(limits.Due("e", kStart + absl::Seconds(119)) == 1);
  CHECK_FALSE(limits.Due("d", kStart + absl::Seconds(120)).has_value());
}

}  // namespace
}  // namespace weir
