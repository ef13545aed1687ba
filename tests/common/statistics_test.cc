#include "common/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"

namespace weir {
namespace {

TEST_CASE("empty") {
  const IntHistogram h;
  CHECK(h.count() == 0);
  CHECK(h.max() == 0);
  CHECK(h.Quantile(0.5) == 0);
}

TEST_CASE("few samples") {
  IntHistogram h;
  h.Add(5);
  CHECK(h.Quantile(0) == 5);
  CHECK(h.Quantile(0.5) == 5);
  CHECK(h.Quantile(1) == 5);
  h.Add(1, 3);
  CHECK(h.count() == 4);
  CHECK(h.Quantile(0.75) == 1);
  CHECK(h.Quantile(0.76) == 5);
}

TEST_CASE("quantiles equal those of the sorted samples") {
  RandomStream random(RandomKey(7, "samples"), 0);
  IntHistogram h;
  std::vector<uint64_t> samples;
  for (int i = 0; i < 997; ++i) {
    samples.push_back(random.NextBelow(1 + random.NextBelow(300)));
    h.Add(samples.back());
  }
  std::sort(samples.begin(), samples.end());
  CHECK(h.max() == samples.back());
  for (const double q : {0.01, 0.25, 0.5, 0.9, 0.99, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(q * 997));
    CHECK(h.Quantile(q) == samples[rank - 1]);
  }
}

TEST_CASE("large values share a count, and the largest stays exact") {
  IntHistogram h;
  h.Add(IntHistogram::kLimit - 1, 98);
  h.Add(IntHistogram::kLimit);
  h.Add(1000000000000);
  CHECK(h.overflow() == 2);
  CHECK(h.Quantile(0.98) == IntHistogram::kLimit - 1);
  CHECK(h.Quantile(0.99) == 1000000000000);
  CHECK(h.max() == 1000000000000);
}

TEST_CASE("the wire's recipe gives the same histogram") {
  IntHistogram h;
  h.Add(0, 2);
  h.Add(3);
  h.Add(5000);
  h.Add(2000);
  IntHistogram copy;
  for (size_t v = 0; v < h.counts().size(); ++v) copy.Add(v, h.counts()[v]);
  copy.Add(h.max(), h.overflow());
  CHECK(copy.counts() == h.counts());
  CHECK(copy.overflow() == h.overflow());
  CHECK(copy.count() == h.count());
  CHECK(copy.max() == h.max());
}

}  // namespace
}  // namespace weir
