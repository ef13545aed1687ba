#include "bench/wire_table.h"

#include "bench/race.h"
#include "catch2/catch.hpp"

namespace weir::bench {
namespace {

TEST_CASE("sizes") {
  CHECK(*ParseSize("1KB") == 1024);
  CHECK(*ParseSize("3MB") == 3 << 20);
  CHECK(*ParseSize("64GB") == int64_t{64} << 30);
  for (const char* text :
       {"", "KB", "1", "1kb", "0KB", "-1MB", "65GB", "1TB", "1.5MB", "99999999999999999999KB"}) {
    INFO(text);
    CHECK_FALSE(ParseSize(text).ok());
  }
  CHECK(FormatSize(1024) == "1KB");
  CHECK(FormatSize(3 << 20) == "3MB");
  CHECK(FormatSize(int64_t{5} << 30) == "5GB");
  CHECK(FormatSize((1 << 20) + 1024) == "1025KB");
}

TEST_CASE("layouts") {
  CHECK(*ParseLayout("2x4") == std::pair{2, 4});
  for (const char* text : {"", "2", "2x", "x4", "0x1", "1x65", "2x4x1", "2X4"}) {
    INFO(text);
    CHECK_FALSE(ParseLayout(text).ok());
  }
}

TEST_CASE("quantiles") {
  CHECK(Median({3, 1, 2}) == 2);
  CHECK(Median({4, 1, 3, 2}) == 3);
  CHECK(Quantile({1, 2, 3, 4}, 0) == 1);
  CHECK(Quantile({1, 2, 3, 4}, 0.25) == 2);
  CHECK(Quantile({1, 2, 3, 4}, 1) == 4);
}

TEST_CASE("a track sums its turns up") {
  Track slow, fast;
  slow.contestant.elements = 250'000'000;
  slow.contestant.clients = 2;
  for (double seconds : {1.0, 4.0, 2.0}) {
    Turn turn;
    turn.step_seconds = seconds;
    turn.seconds = {seconds, seconds};
    slow.turns.push_back(turn);
    turn.step_seconds = 1;
    fast.turns.push_back(turn);
  }
  CHECK(slow.step_seconds() == 2);
  // 2 clients, 1 GB each way.
  CHECK(slow.gb_per_second() == Approx(2));
  CHECK(slow.StepQuantile(0.99) == 4);
  CHECK(Ratios(slow, fast, StepSeconds) == std::vector<double>{1, 4, 2});
}

TEST_CASE("a contestant that cannot run does not keep the others from racing") {
  const auto host = ServerHost::Local();
  REQUIRE(host.ok());
  Contestant raw, bad;
  raw.kind = "raw";
  bad.kind = "pigeon";
  raw.elements = bad.elements = 256;
  const std::vector<Track> tracks = Race({bad, raw}, {3, 0.001, 5}, host->get());
  CHECK_FALSE(tracks[0].status.ok());
  CHECK(tracks[0].turns.empty());
  REQUIRE(tracks[1].status.ok());
  REQUIRE(tracks[1].turns.size() == 3);
  CHECK(tracks[1].turns[0].seconds.size() >= 5);
  CHECK(tracks[1].step_seconds() > 0);
}

}  // namespace
}  // namespace weir::bench
