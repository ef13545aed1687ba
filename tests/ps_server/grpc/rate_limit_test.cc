#include "ps_server/grpc/rate_limit.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

int Taken(RateLimit& limit, absl::Time now) {
  int taken = 0;
  while (taken < 1000 && limit.Take(now)) ++taken;
  return taken;
}

TEST_CASE("As many events as the burst may come at once, and then so many a second") {
  const absl::Time begin = absl::UnixEpoch();
  RateLimit limit(2, 20);
  CHECK(Taken(limit, begin) == 20);
  CHECK(Taken(limit, begin) == 0);
  CHECK(Taken(limit, begin + absl::Milliseconds(499)) == 0);
  CHECK(Taken(limit, begin + absl::Milliseconds(500)) == 1);
  CHECK(Taken(limit, begin + absl::Milliseconds(3500)) == 6);
}

TEST_CASE("A long silence gives no more than the burst") {
  const absl::Time begin = absl::UnixEpoch();
  RateLimit limit(2, 20);
  CHECK(Taken(limit, begin) == 20);
  CHECK(Taken(limit, begin + absl::Hours(5)) == 20);
}

TEST_CASE("A clock that stands still, or goes back, gives nothing") {
  const absl::Time begin = absl::UnixEpoch() + absl::Hours(1);
  RateLimit limit(2, 1);
  CHECK(Taken(limit, begin) == 1);
  CHECK(Taken(limit, begin - absl::Minutes(1)) == 0);
  CHECK(Taken(limit, begin) == 0);
}

}  // namespace
}  // namespace weir
