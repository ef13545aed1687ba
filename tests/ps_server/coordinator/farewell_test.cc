#include "ps_server/coordinator/farewell.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

using Names = std::vector<std::string>;
constexpr absl::Duration kLease = absl::Seconds(10);
const absl::Time kStart = absl::FromUnixSeconds(1000);

Names MayCome(const Farewell& farewell, absl::Duration after, absl::Duration saved = absl::ZeroDuration()) {
  return farewell.MayCome(kStart + after, kStart + saved,
                          [](uint32_t rank) { return absl::StrCat("worker:", rank); });
}

TEST_CASE("Workers that were never there may come for a lease from the start") {
  Farewell farewell(3, kLease);
  CHECK(MayCome(farewell, absl::ZeroDuration()).empty());
  farewell.OnStart(kStart);
  farewell.OnTold(0, 70);
  farewell.OnGaveUp(2);
  CHECK(MayCome(farewell, absl::Seconds(9)) == Names{"worker:1 (not there yet)"});
  CHECK(MayCome(farewell, kLease).empty());
}

TEST_CASE("A worker that fell silent may come for a lease from when the end was saved, or it was lost") {
  Farewell farewell(1, kLease);
  farewell.OnTold(0, 70);
  farewell.OnLost(0, "worker:0", kStart, /*disconnected=*/false, {});
  CHECK(MayCome(farewell, absl::Seconds(9)) == Names{"worker:0 (lost before)"});
  CHECK(MayCome(farewell, absl::Seconds(11)).empty());
  CHECK(MayCome(farewell, absl::Seconds(11), absl::Seconds(5)) == Names{"worker:0 (lost before)"});
  SECTION("unless it has heard of the end") { farewell.OnTold(0, 70); }
  SECTION("unless it is in again") { farewell.OnMember(0); }
  CHECK(MayCome(farewell, absl::Seconds(1)).empty());
}

TEST_CASE("A worker whose connection broke comes back soon, or never") {
  Farewell farewell(1, kLease);
  farewell.OnLost(0, "worker:0", kStart, /*disconnected=*/true, {});
  CHECK(MayCome(farewell, absl::Milliseconds(999)) == Names{"worker:0 (lost before)"});
  CHECK(MayCome(farewell, Farewell::kComesBack).empty());
}

TEST_CASE("Who waited already when a worker was lost is another process, and does not hear in its stead") {
  Farewell farewell(1, kLease);
  const bool disconnected = GENERATE(false, true);
  farewell.OnLost(0, "worker:0", kStart, disconnected, {71, 72});
  farewell.OnTold(0, 71);
  farewell.OnTold(0, 72);
  CHECK(MayCome(farewell, absl::Milliseconds(999)) == Names{"worker:0 (lost before)"});
  CHECK(MayCome(farewell, kLease).empty());
  SECTION("the lost one comes") { farewell.OnTold(0, 73); }
  SECTION("another one was let in, and is awaited itself") { farewell.OnMember(0); }
  CHECK(MayCome(farewell, absl::ZeroDuration()).empty());
}

TEST_CASE("A process whose connection broke while it waited to join comes back soon, or never") {
  Farewell farewell(1, kLease);
  SECTION("a new one") { farewell.OnJoinBroken(0, "worker:0", kStart); }
  SECTION("after a member that is dead for long") {
    farewell.OnLost(0, "worker:0", kStart - absl::Seconds(5), /*disconnected=*/true, {});
    farewell.OnJoinBroken(0, "worker:0", kStart);
  }
  CHECK(MayCome(farewell, absl::Milliseconds(999)) == Names{"worker:0 (lost before)"});
  CHECK(MayCome(farewell, Farewell::kComesBack).empty());
  farewell.OnTold(0, 70);
  CHECK(MayCome(farewell, absl::ZeroDuration()).empty());
}

TEST_CASE("A broken Join makes no wait shorter") {
  Farewell farewell(1, kLease);
  SECTION("for a silent worker") {
    farewell.OnLost(0, "worker:0", kStart, /*disconnected=*/false, {});
    farewell.OnJoinBroken(0, "worker:0", kStart);
    CHECK(MayCome(farewell, absl::Seconds(9)) == Names{"worker:0 (lost before)"});
  }
  SECTION("for a worker that was never there") {
    farewell.OnJoinBroken(0, "worker:0", kStart);
    farewell.OnStart(kStart);
    CHECK(MayCome(farewell, absl::ZeroDuration()) == Names{"worker:0 (lost before)"});
    CHECK(MayCome(farewell, absl::Seconds(9)) == Names{"worker:0 (not there yet)"});
  }
  CHECK(MayCome(farewell, kLease).empty());
}

TEST_CASE("When the job goes on after all, workers that were told of its end may come again") {
  Farewell farewell(1, kLease);
  farewell.OnStart(kStart);
  farewell.OnTold(0, 70);
  CHECK(MayCome(farewell, absl::Seconds(1)).empty());
  farewell.OnMore();
  CHECK(MayCome(farewell, absl::Seconds(1)) == Names{"worker:0 (not there yet)"});
}

TEST_CASE("A rank that gave up counts until a process of it is in again") {
  Farewell farewell(2, kLease);
  farewell.OnGaveUp(1);
  CHECK(farewell.gave_up() == std::set<uint32_t>{1});
  farewell.OnMember(1);
  CHECK(farewell.gave_up().empty());
}

TEST_CASE("All know of a failure when all have left, after two seconds, or when nobody is waited for") {
  Farewell farewell(2, kLease);
  CHECK(farewell.AllKnow(kStart));
  farewell.OnFailure({7, 8}, kStart);
  CHECK_FALSE(farewell.AllKnow(kStart));
  farewell.OnLeft(7);
  farewell.OnLeft(7);
  farewell.OnLeft(9);
  CHECK_FALSE(farewell.AllKnow(kStart + absl::Milliseconds(1999)));
  SECTION("all have left") {
    farewell.OnLeft(8);
    CHECK(farewell.AllKnow(kStart));
  }
  SECTION("two seconds") { CHECK(farewell.AllKnow(kStart + absl::Seconds(2))); }
  SECTION("nobody is waited for") {
    farewell.WaitNoLonger();
    CHECK(farewell.AllKnow(kStart));
  }
}

TEST_CASE("Servers are waited for until they know, as long as is said, beside the members") {
  Farewell farewell(1, kLease);
  farewell.OnServersTold({0, 3}, kStart + absl::Seconds(5));
  farewell.OnServerKnows(0);
  CHECK(farewell.untold_servers() == std::set<uint32_t>{3});
  CHECK_FALSE(farewell.AllKnow(kStart + absl::Milliseconds(4999)));
  CHECK(farewell.AllKnow(kStart + absl::Seconds(5)));
  farewell.OnFailure({7}, kStart);
  farewell.OnServerKnows(3);
  CHECK_FALSE(farewell.AllKnow(kStart));
  farewell.OnLeft(7);
  CHECK(farewell.AllKnow(kStart));
}

}  // namespace
}  // namespace weir
