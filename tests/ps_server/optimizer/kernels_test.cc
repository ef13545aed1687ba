#include "ps_server/optimizer/kernels.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "catch2/catch.hpp"
#include "proto/job_config.pb.h"
#include "tests/ps_server/optimizer/testing.h"

namespace weir {
namespace {

std::vector<const Kernels*> AllTables() {
  std::vector<const Kernels*> tables;
  for (KernelLevel level : AvailableKernelLevels()) tables.push_back(*KernelsFor(level));
  return tables;
}

float FromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

TEST_CASE("Kernels: a level is there or refused by name") {
  const std::vector<std::pair<KernelLevel, std::string>> names = {
      {KernelLevel::kPlain, "plain"}, {KernelLevel::kAvx2, "avx2"}, {KernelLevel::kAvx512, "avx512"}};
  std::string widest;
  for (const auto& [level, name] : names) {
    absl::StatusOr<const Kernels*> kernels = KernelsFor(level);
    REQUIRE(kernels.ok() == HasKernels(level));
    if (kernels.ok()) {
      CHECK((*kernels)->name == name);
      widest = name;
    } else {
      CHECK(kernels.status().code() == absl::StatusCode::kFailedPrecondition);
      CHECK_THAT(std::string(kernels.status().message()), Catch::Contains(name) && Catch::Contains("plain"));
    }
  }
  CHECK(HasKernels(KernelLevel::kPlain));
  CHECK(BestKernels().name == widest);
}

TEST_CASE("Kernels: server.kernels chooses") {
  v1::ServerConfig config;
  CHECK(*KernelsFromConfig(config) == &BestKernels());
  config.set_kernels(v1::ServerConfig::KERNELS_PLAIN);
  CHECK(*KernelsFromConfig(config) == *KernelsFor(KernelLevel::kPlain));
  config.set_kernels(v1::ServerConfig::KERNELS_AVX2);
  if (HasKernels(KernelLevel::kAvx2)) {
    CHECK(*KernelsFromConfig(config) == *KernelsFor(KernelLevel::kAvx2));
  } else {
    CHECK_THAT(std::string(KernelsFromConfig(config).status().message()), Catch::Contains("server.kernels"));
  }
  config.set_kernels(v1::ServerConfig::KERNELS_AVX512);
  if (HasKernels(KernelLevel::kAvx512)) {
    CHECK(*KernelsFromConfig(config) == *KernelsFor(KernelLevel::kAvx512));
  } else {
    CHECK_THAT(std::string(KernelsFromConfig(config).status().message()), Catch::Contains("server.kernels"));
  }
  config.set_kernels(v1::ServerConfig::KERNELS_UNSPECIFIED);
  CHECK(KernelsFromConfig(config).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Kernels: scale, accumulate and assign give the bits of a scalar loop") {
  for (const Kernels* kernels : AllTables()) {
    for (size_t n : {0, 1, 7, 31, 33, 1000, 65536}) {
      for (size_t shift : {0, 1, 2, 3, 4}) {
        CAPTURE(kernels->name, n, shift);
        const std::vector<float> a = RandomFloats(1, n, 3), b = RandomFloats(2, n, 1e-3f);
        const UnalignedFloats a_bytes(a, shift), b_bytes(b, shift);
        std::vector<float> expected(n);
        GuardedFloats sum(n, shift), copy(n, shift), want(n);
        for (size_t i = 0; i < n; ++i) expected[i] = 0.3f * a[i];
        for (size_t i = 0; i < n; ++i) expected[i] += 0.7f * b[i];
        want.Set(expected);
        kernels->scale(sum.data(), 0.3f, a_bytes.data(), n);
        kernels->accumulate(sum.data(), 0.7f, b_bytes.data(), n);
        CHECK(sum.SameBits(want));
        CHECK(sum.GuardsIntact());
        want.Set(a);
        kernels->assign(copy.data(), a_bytes.data(), n);
        CHECK(copy.SameBits(want));
        CHECK(copy.GuardsIntact());
      }
    }
  }
}

TEST_CASE("Kernels: first_non_finite finds the first, wherever it is") {
  const std::vector<float> bad = {INFINITY, -INFINITY, NAN,
                                  FromBits(0x7f800001),  // a signalling NaN
                                  FromBits(0xffc00000)};
  for (const Kernels* kernels : AllTables()) {
    for (size_t n : {1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 1023, 1024, 1025, 2047, 2049, 2500}) {
      for (size_t shift : {0, 1, 4}) {
        std::vector<float> values = RandomFloats(3, n, 1);
        // The largest finite ones, in all places where bits could be mistaken.
        for (size_t i = 0; i < n; i += 3) values[i] = i % 2 == 0 ? FLT_MAX : -FLT_MAX;
        CAPTURE(kernels->name, n, shift);
        REQUIRE(kernels->first_non_finite(UnalignedFloats(values, shift).data(), n) == n);
        size_t misses = 0;
        for (size_t at = 0; at<n; at += n> 100 ? 13 : 1) {
          for (float x : bad) {
            std::vector<float> with = values;
            with[at] = x;
            misses += kernels->first_non_finite(UnalignedFloats(with, shift).data(), n) != at;
            with[n - 1] = x;
            misses += kernels->first_non_finite(UnalignedFloats(with, shift).data(), n) != at;
            // What lies behind the end does not count.
            misses += kernels->first_non_finite(UnalignedFloats(with, shift).data(), at) != at;
          }
        }
        CHECK(misses == 0);
        values[n - 1] = NAN;
        CHECK(kernels->first_non_finite(UnalignedFloats(values, shift).data(), n) == n - 1);
      }
    }
    CHECK(kernels->first_non_finite(nullptr, 0) == 0);
  }
}

}  // namespace
}  // namespace weir
