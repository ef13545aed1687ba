#include "catch2/catch.hpp"
#include "ps_server/coordinator/progress/job_meter.h"

namespace weir {
namespace {

TEST_CASE("A point is the mean over what was reported since the one before") {
  LossCurve curve;
  curve.Sample(0, 0, 0);
  CHECK(curve.Points().empty());
  curve.Sample(8, 8, 16);
  curve.Sample(16, 8, 16);  // no new report
  curve.Sample(24, 24, 32);
  const auto points = curve.Points();
  REQUIRE(points.size() == 2);
  CHECK(points[0].examples() == 8);
  CHECK(points[0].train_loss() == 2);
  CHECK(points[1].examples() == 24);
  CHECK(points[1].train_loss() == 1);
}

TEST_CASE("Reports while the job stands still belong to one point") {
  LossCurve curve;
  curve.Sample(8, 4, 8);
  curve.Sample(8, 8, 24);
  REQUIRE(curve.Points().size() == 1);
  CHECK(curve.Points()[0].train_loss() == 3);
}

TEST_CASE("A curve goes back with the job") {
  LossCurve curve;
  for (uint64_t i = 1; i <= 4; ++i) curve.Sample(10 * i, 10 * i, 10. * static_cast<double>(i));
  curve.Sample(20, 40, 40);
  CHECK(curve.Points().size() == 2);
  curve.Sample(30, 50, 70);
  const auto points = curve.Points();
  REQUIRE(points.size() == 3);
  CHECK(points[2].examples() == 30);
  CHECK(points[2].train_loss() == 3);
}

TEST_CASE("A curve of any length is a few hundred points at even distances, and loses nothing") {
  LossCurve curve;
  constexpr uint64_t kSamples = 100'000;
  for (uint64_t i = 1; i <= kSamples; ++i) curve.Sample(i, i, 2. * static_cast<double>(i));
  const auto points = curve.Points();
  REQUIRE(points.size() <= LossCurve::kMostPoints);
  REQUIRE(points.size() >= LossCurve::kMostPoints / 2);
  CHECK(points.back().examples() == kSamples);
  const uint64_t distance = points[0].examples();
  for (size_t i = 0; i < points.size(); ++i) {
    CHECK(points[i].train_loss() == 2);
    if (i + 1 < points.size()) CHECK(points[i].examples() == (i + 1) * distance);
  }
}

}  // namespace
}  // namespace weir
