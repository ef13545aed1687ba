#include <limits>

#include "catch2/catch.hpp"
#include "ps_server/coordinator/members/member_table.h"

namespace weir {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST_CASE("The share of the last ten seconds") {
  ComputeShare share;
  CHECK_FALSE(share.Value().has_value());
  share.OnReport(kStart, 5);
  CHECK_FALSE(share.Value().has_value());
  // The worker computes for a quarter of the time, and then not at all.
  double computed = 5;
  absl::Time now = kStart;
  for (int i = 0; i < 40; ++i) share.OnReport(now += absl::Milliseconds(500), computed += 0.125);
  CHECK(share.Value() == 0.25);
  for (int i = 0; i < 10; ++i) share.OnReport(now += absl::Milliseconds(500), computed);
  CHECK(share.Value() == 0.125);
  for (int i = 0; i < 10; ++i) share.OnReport(now += absl::Milliseconds(500), computed);
  CHECK(share.Value() == 0);
}

TEST_CASE("Reports that come at once change nothing") {
  ComputeShare share;
  share.OnReport(kStart, 0);
  for (int i = 0; i < 249; ++i) share.OnReport(kStart + absl::Milliseconds(i), i);
  CHECK_FALSE(share.Value().has_value());
  share.OnReport(kStart + absl::Milliseconds(250), 0.125);
  CHECK(share.Value() == 0.5);
}

TEST_CASE("Whatever a worker reports, the share is between 0 and 1") {
  for (const double second : {-1e300, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    ComputeShare share;
    share.OnReport(kStart, 0);
    share.OnReport(kStart + absl::Seconds(1), second);
    CHECK(share.Value() == 0);
  }
  for (const double second : {1.5, std::numeric_limits<double>::infinity()}) {
    ComputeShare share;
    share.OnReport(kStart, 0);
    share.OnReport(kStart + absl::Seconds(1), second);
    CHECK(share.Value() == 1);
  }
}

}  // namespace
}  // namespace weir
