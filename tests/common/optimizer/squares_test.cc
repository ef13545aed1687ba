#include "common/optimizer/squares.h"

#include <cfloat>
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "common/optimizer/kernels.h"
#include "tests/common/optimizer/testing.h"

namespace weir {
namespace {

// The squares of a run as sum_squares adds them.
double TreeSum(const float* values) {
  std::vector<double> sums(kSquaresRun);
  for (size_t i = 0; i < kSquaresRun; ++i) sums[i] = static_cast<double>(values[i]) * values[i];
  for (size_t half = kSquaresRun / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

ExactSum Squares(const Kernels& kernels, const std::vector<float>& values, int64_t position) {
  ExactSum sum;
  AddSquares(kernels, values.data(), position, values.size(), &sum);
  return sum;
}

TEST_CASE("Squares of runs have the bits of the documented order at every level") {
  for (KernelLevel level : AvailableKernelLevels()) {
    const Kernels& kernels = **KernelsFor(level);
    INFO(kernels.name);
    for (size_t runs : {0, 1, 2, 7}) {
      std::vector<float> values = RandomFloats(runs, runs * kSquaresRun, 1);
      for (size_t i = 0; i < values.size(); i += 3) values[i] *= 1e20f;
      for (size_t i = 1; i < values.size(); i += 5) values[i] *= 1e-38f;
      std::vector<double> sums(runs + 1, -1);
      kernels.sum_squares(sums.data(), values.data(), runs);
      for (size_t run = 0; run < runs; ++run) CHECK(sums[run] == TreeSum(&values[run * kSquaresRun]));
      CHECK(sums[runs] == -1);
    }
  }
}

TEST_CASE("The squares of a tensor do not depend on where blocks cut it") {
  for (KernelLevel level : AvailableKernelLevels()) {
    const Kernels& kernels = **KernelsFor(level);
    for (int64_t position : {0, 1, 9, 15, 16, 4096 + 5}) {
      for (size_t n : {1, 6, 7, 16, 17, 40, 3000}) {
        CAPTURE(position, n);
        const std::vector<float> values = RandomFloats(n, n, 3);
        const ExactSum whole = Squares(**KernelsFor(KernelLevel::kPlain), values, position);
        double expected = 0;
        for (float value : values) expected += static_cast<double>(value) * value;
        CHECK(whole.value() == Approx(expected).epsilon(1e-12));
        // Blocks of 32 elements.
        ExactSum parts;
        for (size_t at = 0; at < n;) {
          const size_t end = std::min(n, at + 32 - static_cast<size_t>(position + at) % 32);
          AddSquares(kernels, &values[at], position + static_cast<int64_t>(at), end - at, &parts);
          at = end;
        }
        CHECK(parts.Serialize() == whole.Serialize());
      }
    }
  }
}

TEST_CASE("Squares of the largest float are summed, and what is not finite shows") {
  const Kernels& kernels = BestKernels();
  CHECK(Squares(kernels, std::vector<float>(5000, FLT_MAX), 3).value() == Approx(5000.0 * FLT_MAX * FLT_MAX));
  CHECK(Squares(kernels, std::vector<float>(20, FLT_TRUE_MIN), 3).value() == 20 * 0x1p-298);
  for (float bad : NonFinites()) {
    std::vector<float> values(100, 1);
    values[71] = bad;
    CHECK(Squares(kernels, values, 3).value() == INFINITY);
  }
}

}  // namespace
}  // namespace weir
