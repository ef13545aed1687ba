#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"

namespace weir {
namespace {

const float kBad[] = {NAN, -NAN, INFINITY, -INFINITY};

// The largest finite values, whose bits are next to infinity's, and small ones.
std::vector<float> Finite(int64_t n, float largest) {
  std::vector<float> values(static_cast<size_t>(n), 0.5f);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = i % 2 == 0 ? largest : -largest;
  return values;
}

int64_t FirstInUnaligned(const std::vector<float>& values, int64_t n, size_t shift) {
  std::vector<char> bytes(shift + values.size() * sizeof(float));
  std::memcpy(bytes.data() + shift, values.data(), values.size() * sizeof(float));
  return FirstNonFiniteAt(bytes.data() + shift, n);
}

TEST_CASE("FirstNonFinite: the first among float32, wherever it is and at any address") {
  for (const int64_t n : {1, 2, 3, 15, 16, 17, 33, 64, 65, 1025, 16383, 16384, 16385, 40000}) {
    const std::vector<float> values = Finite(n, FLT_MAX);
    CAPTURE(n);
    REQUIRE(FirstNonFinite(values.data(), n) == n);
    size_t wrong = 0;
    for (int64_t at = 0; at<n; at += n> 100 ? n / 29 : 1) {
      for (const float x : kBad) {
        std::vector<float> with = values;
        with[static_cast<size_t>(n) - 1] = x;
        with[static_cast<size_t>(at)] = x;
        wrong += FirstNonFinite(with.data(), n) != at;
        for (const size_t shift : {1, 2, 4}) wrong += FirstInUnaligned(with, n, shift) != at;
        // Values behind the end do not count.
        wrong += FirstNonFinite(with.data(), at) != at;
      }
    }
    CHECK(wrong == 0);
  }
  CHECK(FirstNonFinite(static_cast<const float*>(nullptr), 0) == 0);
}

TEST_CASE("FirstNonFinite: the first among bfloat16") {
  for (const int64_t n : {1, 31, 32, 33, 20000}) {
    std::vector<float> values = Finite(n, 1e38f);
    std::vector<uint16_t> small(values.size());
    ToBfloat16(values.data(), small.data(), values.size());
    CAPTURE(n);
    CHECK(FirstNonFinite(small.data(), n) == n);
    for (const float x : kBad) {
      values[static_cast<size_t>(n / 2)] = x;
      ToBfloat16(values.data(), small.data(), values.size());
      CHECK(FirstNonFinite(small.data(), n) == n / 2);
    }
  }
}

TEST_CASE("FirstNonFiniteBfloat16: what bfloat16 rounds to infinity counts as infinite") {
  for (const float x : {NAN, -INFINITY, FLT_MAX, -FLT_MAX}) {
    const std::vector<float> values = {1, 3.3e38f, x, 1};
    CAPTURE(x);
    CHECK(FirstNonFiniteBfloat16(values.data(), 4) == 2);
  }
}

}  // namespace
}  // namespace weir
