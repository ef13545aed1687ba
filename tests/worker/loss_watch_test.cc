#include "worker/loss_watch.h"

#include <cmath>
#include <limits>
#include <string>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;

constexpr uint64_t kExamples = 8;

// Feeds this many batches with this mean loss. Returns the finding of the last one; earlier ones find
// nothing.
std::optional<std::string> Feed(LossWatch& watch, uint64_t batches, double loss) {
  std::optional<std::string> found;
  for (uint64_t i = 0; i < batches; ++i) {
    CHECK_FALSE(found.has_value());
    found = watch.OnBatch(loss * kExamples, kExamples);
  }
  return found;
}

TEST_CASE("a loss that grows beyond the factor, and beyond that of the first batches, diverges") {
  LossWatch watch(10);
  CHECK_FALSE(Feed(watch, LossWatch::kFirstBatches, 2).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches, 1).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches, 9).has_value());
  const auto found = Feed(watch, LossWatch::kBatches, 12);
  REQUIRE(found.has_value());
  CHECK_THAT(
      *found,
      Contains(
          "the mean loss of the last 50 batches is 12, the lowest before was 1 (train.divergence = 10)"));
}

TEST_CASE("a loss that has come close to 0 may rise by any factor up to where it began") {
  LossWatch watch(100);
  CHECK_FALSE(Feed(watch, LossWatch::kFirstBatches, 2).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches, 1e-9).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches, 1.9).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches, 0).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches, 1.9).has_value());
}

TEST_CASE("one bad batch does not make a window diverge") {
  LossWatch watch(100);
  CHECK_FALSE(Feed(watch, LossWatch::kFirstBatches, 2).has_value());
  CHECK_FALSE(Feed(watch, 1, 5000).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches - 1, 1).has_value());
}

TEST_CASE("training that diverges from the start is found against its first batches") {
  LossWatch watch(100);
  CHECK_FALSE(Feed(watch, LossWatch::kFirstBatches, 2).has_value());
  CHECK(Feed(watch, LossWatch::kBatches, 1e6).has_value());
}

TEST_CASE("losses that are not finite diverge when no other come between") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  LossWatch watch(100);
  CHECK_FALSE(Feed(watch, 1, 2).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches - 1, kInfinity).has_value());
  CHECK_FALSE(Feed(watch, 1, 2).has_value());
  CHECK_FALSE(Feed(watch, LossWatch::kBatches - 1, std::nan("")).has_value());
  const auto found = Feed(watch, 1, kInfinity);
  REQUIRE(found.has_value());
  CHECK(*found == "the losses of the last 50 batches are not finite (train.divergence = 100)");
}

TEST_CASE("0 finds nothing") {
  LossWatch watch(0);
  CHECK_FALSE(Feed(watch, LossWatch::kFirstBatches, 1).has_value());
  CHECK_FALSE(Feed(watch, 10 * LossWatch::kBatches, 1e30).has_value());
  CHECK_FALSE(Feed(watch, 10 * LossWatch::kBatches, std::nan("")).has_value());
}

}  // namespace
}  // namespace weir
