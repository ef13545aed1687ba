#include "common/optimizer/kernels.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "proto/job_config.pb.h"
#include "tests/common/optimizer/racing_writer.h"
#include "tests/common/optimizer/testing.h"

namespace weir {
namespace {

std::vector<const Kernels*> AllTables() {
  std::vector<const Kernels*> tables;
  for (KernelLevel level : AvailableKernelLevels()) tables.push_back(*KernelsFor(level));
  return tables;
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
        CHECK(kernels->scale(sum.data(), 0.3f, a_bytes.data(), n));
        CHECK(kernels->accumulate(sum.data(), 0.7f, b_bytes.data(), n));
        CHECK(sum.SameBits(want));
        CHECK(sum.GuardsIntact());
        want.Set(a);
        CHECK(kernels->assign(copy.data(), a_bytes.data(), n));
        CHECK(copy.SameBits(want));
        CHECK(copy.GuardsIntact());
      }
    }
  }
}

// Runs each kernel that takes a gradient, over weights and slots of its own.
struct Runner {
  static constexpr size_t kMost = 1000;
  std::vector<float> weights = std::vector<float>(kMost, 0.5f),
                     slots[kMostSlots] = {weights, weights, weights}, out = weights;

  PastCaches past = PastCaches::kNothing;

  // The steps come first. Only the last one may read a value of the gradient twice.
  static constexpr int kSteps = 9, kReadOnce = 12, kKernels = 13;
  bool Run(const Kernels& k, int which, const void* gradient, size_t n) {
    bool (*const steps[])(const StepArgs&) = {k.sgd,  k.momentum, k.nesterov, k.adagrad, k.rmsprop,
                                              k.lion, k.adam,     k.ftrl,     k.amsgrad};
    if (which < kSteps || which == kReadOnce) {
      StepArgs args{};
      args.n = n;
      args.weights_in = weights.data();
      args.weights_out = out.data();
      args.gradient = gradient;
      for (size_t s = 0; s < kMostSlots; ++s) args.slots_in[s] = args.slots_out[s] = slots[s].data();
      for (int s = 0; s < 2; ++s) args.keep[s] = args.take[s] = 0.5f;
      args.rate = args.epsilon = args.root_scale = args.l1 = args.l2 = args.beta = 0.5f;
      args.past = past;
      return which == kReadOnce ? k.row_wise_adagrad(args) : steps[which](args);
    }
    if (which == kSteps) return k.scale(out.data(), 0.5f, gradient, n);
    if (which == kSteps + 1) return k.accumulate(out.data(), 0.5f, gradient, n);
    return k.assign(out.data(), gradient, n);
  }
};

TEST_CASE("Kernels: a value that is not finite is noticed in the pass, wherever it is") {
  for (const Kernels* kernels : AllTables()) {
    for (int which = 0; which < Runner::kKernels; ++which) {
      for (size_t n : {0, 1, 2, 15, 16, 17, 33, 64, 65, 1000}) {
        for (size_t shift : {0, 1}) {
          Runner runner;
          std::vector<float> values = RandomFloats(3, n, 1);
          // Values that are only just finite, and whose squares or sums are not.
          for (size_t i = 0; i < n; i += 3) values[i] = i % 2 == 0 ? FLT_MAX : -FLT_MAX;
          if (n > 1) values[1] = FLT_TRUE_MIN;
          CAPTURE(kernels->name, which, n, shift);
          CHECK(runner.Run(*kernels, which, UnalignedFloats(values, shift).data(), n));
          size_t wrong = 0;
          for (size_t at = 0; at < n; at += n - 1 - at < 37 || n < 100 ? 1 : 37) {
            std::vector<float> with = values;
            with[at] = NonFinites()[at % NonFinites().size()];
            const UnalignedFloats bytes(with, shift);
            wrong += runner.Run(*kernels, which, bytes.data(), n);
            // Values behind the end do not count; nor do the resulting weights.
            wrong += !runner.Run(*kernels, which, bytes.data(), at);
          }
          for (float x : NonFinites()) {
            if (n > 0) values.back() = x;
            wrong += n > 0 && runner.Run(*kernels, which, UnalignedFloats(values, shift).data(), n);
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("Kernels: what was found finite is what was used, while another process writes the gradient") {
  constexpr size_t kN = 37;  // more than one vector at any level, and a rest
  RacingWriter gradient;
  for (const Kernels* kernels : AllTables()) {
    for (int which = 0; which < Runner::kReadOnce; ++which) {
      for (PastCaches past : {PastCaches::kNothing, PastCaches::kSlotsAndWeights}) {
        for (size_t at : {size_t{0}, size_t{3}, size_t{20}, kN - 2, kN - 1}) {
          for (const auto& [before, after] : {std::pair(1.0f, NAN), std::pair(NAN, 1.0f)}) {
            size_t wrong = 0, refused = 0, accepted = 0;
            // Until the write comes after the last read.
            for (int reads = 0, all = 0; reads <= all; ++reads) {
              for (size_t i = 0; i < kN; ++i) gradient.Write(i, 1.0f);
              gradient.Write(at, before);
              Runner runner;
              runner.past = past;
              bool finite = false;
              all = gradient.Run(at, after, reads,
                                 [&] { finite = runner.Run(*kernels, which, gradient.values(), kN); });
              wrong += std::isnan(runner.out[at]) == finite;
              wrong += which > 0 && which < Runner::kSteps && std::isnan(runner.slots[0][at]) == finite;
              wrong += which > 5 && which < Runner::kSteps && std::isnan(runner.slots[1][at]) == finite;
              wrong += which == 8 && std::isnan(runner.slots[2][at]) == finite;
              ++(finite ? accepted : refused);
            }
            CAPTURE(kernels->name, which, static_cast<int>(past), at, before, refused, accepted);
            CHECK(wrong == 0);
            CHECK(refused > 0);
            CHECK(accepted > 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir
