#include "common/protocol/logged_metric.h"

#include <random>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("a metric's name has 1 to 64 letters, digits, and a few signs") {
  for (const std::string& name : {std::string("a"), std::string("val/Top-5.acc_2"), std::string(64, 'x')}) {
    CHECK(CheckMetricName(name) == absl::OkStatus());
  }
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\"b"), std::string("a\nb"),
                                  std::string("\xc3\xa4"), std::string(65, 'x')}) {
    CHECK(CheckMetricName(name).code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(CheckMetricName("a\nb").message() ==
        "the metric \"a\\nb\": a name has 1 to 64 letters, digits, '_', '-', '.' and '/'");
}

TEST_CASE("the area under the curve is the share of pairs in the right order; equal ones count half") {
  std::mt19937_64 random(3);
  std::vector<int> scores;
  std::vector<bool> labels;
  std::vector<uint64_t> positives(16), negatives(16);
  for (int i = 0; i < 300; ++i) {
    const bool label = random() % 3 == 0;
    const auto score = static_cast<int>(label ? random() % 12 + 4 : random() % 13);
    scores.push_back(score);
    labels.push_back(label);
    ++(label ? positives : negatives)[score];
  }
  double right = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t k = 0; k < scores.size(); ++k) {
      if (!labels[i] || labels[k]) continue;
      right += scores[i] > scores[k] ? 1 : scores[i] == scores[k] ? 0.5 : 0;
      ++pairs;
    }
  }
  REQUIRE(AucOf(positives, negatives).has_value());
  CHECK(*AucOf(positives, negatives) == Approx(right / pairs));
  CHECK(AucOf({0, 2}, {3, 0}) == 1.0);
  CHECK_FALSE(AucOf({1, 2}, {0, 0}).has_value());
  CHECK_FALSE(AucOf({}, {}).has_value());
}

}  // namespace
}  // namespace weir
