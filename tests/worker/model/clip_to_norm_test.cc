#include <cmath>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "worker/model/model.h"

namespace weir {
namespace {

TEST_CASE("The norm is that of all values together, without overflow") {
  for (const size_t n : {0u, 1u, 7u, 8u, 9u, 31u, 1000u}) {
    std::vector<float> values;
    double squares = 0;
    for (size_t i = 0; i < n; ++i) {
      values.push_back(static_cast<float>(i) - 3);
      squares += std::pow(static_cast<double>(i) - 3, 2);
    }
    CHECK(ClipToNorm(0, {absl::MakeSpan(values)}) == Approx(std::sqrt(squares)));
  }
  std::vector<float> large{3e30f, 4e30f};
  CHECK(ClipToNorm(0, {absl::MakeSpan(large)}) == Approx(5e30));
}

TEST_CASE("A gradient above the norm is scaled down to it, another is left alone") {
  std::vector<float> values{3, 4};
  CHECK(ClipToNorm(0, {absl::MakeSpan(values)}) == 5);
  CHECK(ClipToNorm(5, {absl::MakeSpan(values)}) == 5);
  CHECK(values == std::vector<float>{3, 4});
  CHECK(ClipToNorm(1, {absl::MakeSpan(values)}) == 5);
  CHECK(values[0] == Approx(0.6));
  CHECK(values[1] == Approx(0.8));
  std::vector<float> others{4};
  values = {3};
  CHECK(ClipToNorm(1, {absl::MakeSpan(values), absl::MakeSpan(others)}) == 5);
  CHECK(values[0] == Approx(0.6));
  CHECK(others[0] == Approx(0.8));
  values = {1, std::numeric_limits<float>::infinity()};
  CHECK(std::isinf(ClipToNorm(1, {absl::MakeSpan(values)})));
  CHECK(values[0] == 1);
}

TEST_CASE("Values beyond the limit become the limit, and NaN stays") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{-3, -0.5f, 0.25f, nan, infinity}, others{2, -infinity};
  ClipValues(0, {absl::MakeSpan(values)});
  CHECK((values[0] == -3 && values[4] == infinity));
  ClipValues(0.5f, {absl::MakeSpan(values), absl::MakeSpan(others)});
  CHECK((values[0] == -0.5f && values[1] == -0.5f && values[2] == 0.25f && values[4] == 0.5f));
  CHECK(std::isnan(values[3]));
  CHECK(others == std::vector<float>{0.5f, -0.5f});
}

}  // namespace
}  // namespace weir
