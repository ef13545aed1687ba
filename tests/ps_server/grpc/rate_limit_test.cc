#include "catch2/catch.hpp"
#include "ps_server/grpc/client_limits.h"

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

TEST_CASE("Each key has its own limit, and those that are too many share one until others have been still") {
  const absl::Time begin = absl::UnixEpoch();
  RateLimits limits(1, 10, 2);
  for (const char* key : {"a", "b", "c"}) {
    for (int i = 0; i < 10; ++i) CHECK(limits.Take(key, begin));
    CHECK_FALSE(limits.Take(key, begin));
  }
  // "d" shares with "c"; the others keep what they have used.
  CHECK_FALSE(limits.Take("d", begin));
  CHECK_FALSE(limits.Take("a", begin));
  CHECK(limits.Take("a", begin + absl::Seconds(5)));
  // "b" has been still for long enough, "a" has not.
  const absl::Time later = begin + absl::Seconds(10);
  for (int i = 0; i < 10; ++i) CHECK(limits.Take("d", later));
  CHECK_FALSE(limits.Take("d", later));
  for (int i = 0; i < 9; ++i) CHECK(limits.Take("a", later));
  CHECK_FALSE(limits.Take("a", later));
}

}  // namespace
}  // namespace weir
