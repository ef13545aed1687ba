#include "common/optimizer/squares.h"

#include <algorithm>
#include <array>

namespace weir {

void AddSquares(const Kernels& kernels, const float* values, int64_t position, size_t n, ExactSum* sum) {
  constexpr size_t kRunsAtOnce = 64;
  std::array<double, kRunsAtOnce> sums;
  // A part of a run, with zeros around it.
  const auto add_part = [&](size_t at, size_t count) {
    std::array<float, kSquaresRun> run{};
    std::copy_n(values, count, run.begin() + at);
    kernels.sum_squares(sums.data(), run.data(), 1);
    sum->Add(sums[0]);
    values += count;
    n -= count;
  };
  const size_t at = static_cast<size_t>(position) % kSquaresRun;
  if (at > 0) add_part(at, std::min(n, kSquaresRun - at));
  while (n >= kSquaresRun) {
    const size_t runs = std::min(n / kSquaresRun, kRunsAtOnce);
    kernels.sum_squares(sums.data(), values, runs);
    for (size_t run = 0; run < runs; ++run) sum->Add(sums[run]);
    values += runs * kSquaresRun;
    n -= runs * kSquaresRun;
  }
  if (n > 0) add_part(0, n);
}

}  // namespace weir
