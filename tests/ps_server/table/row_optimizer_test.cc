#include "ps_server/table/row_optimizer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/optimizer/kernels.h"
#include "tests/ps_server/optimizer/testing.h"

namespace weir {
namespace {

using Config = RowOptimizerConfig;
using Kind = Config::Kind;

const std::vector<Kind> kAllKinds = {Kind::kSgd,  Kind::kMomentum, Kind::kAdagrad, Kind::kRowWiseAdagrad,
                                     Kind::kAdam, Kind::kFtrl};

// Away from the defaults and from each other, so that mixing up two of them shows.
Config MakeConfig(Kind kind) {
  Config config;
  config.kind = kind;
  config.momentum = 0.8f;
  config.beta1 = 0.85f;
  config.beta2 = 0.95f;
  config.epsilon = 0.03f;
  config.weight_decay = kind == Kind::kFtrl ? 0 : 0.1f;
  config.l1 = 0.4f;
  config.l2 = 0.3f;
  config.beta = 0.7f;
  return config;
}

RowOptimizer Make(const Config& config, size_t dim, const Kernels& kernels = BestKernels()) {
  const auto optimizer = RowOptimizer::Create(config, dim, kernels);
  REQUIRE(optimizer.ok());
  return *optimizer;
}

// The published equations in float64, as literally as possible.
struct Reference {
  Config config;
  std::vector<double> w, slot0, slot1;
  double h = 0;
  int t = 0;

  Reference(const Config& c, const std::vector<float>& initial)
      : config(c), w(initial.begin(), initial.end()), slot0(w.size(), 0), slot1(w.size(), 0) {}

  void Step(const std::vector<float>& gradient, double lr) {
    ++t;
    const double eps = config.epsilon;
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    h += squares / static_cast<double>(gradient.size());
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i], old = w[i];
      switch (config.kind) {
        case Kind::kSgd:
          w[i] -= lr * g;
          break;
        case Kind::kMomentum:
          slot0[i] = config.momentum * slot0[i] + g;
          w[i] -= lr * slot0[i];
          break;
        case Kind::kAdagrad:
          slot0[i] += g * g;
          w[i] -= lr * g / (std::sqrt(slot0[i]) + eps);
          break;
        case Kind::kRowWiseAdagrad:
          w[i] -= lr * g / (std::sqrt(h) + eps);
          break;
        case Kind::kAdam: {
          const double b1 = config.beta1, b2 = config.beta2;
          slot0[i] = b1 * slot0[i] + (1 - b1) * g;
          slot1[i] = b2 * slot1[i] + (1 - b2) * g * g;
          const double m_hat = slot0[i] / (1 - std::pow(b1, t)), v_hat = slot1[i] / (1 - std::pow(b2, t));
          w[i] -= lr * m_hat / (std::sqrt(v_hat) + eps);
          break;
        }
        case Kind::kFtrl: {
          double &z = slot0[i], &n = slot1[i];
          const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / lr;
          z += g - sigma * old;
          n += g * g;
          const double sign = z < 0 ? -1 : 1;
          w[i] = std::abs(z) <= config.l1
                     ? 0
                     : (sign * config.l1 - z) / ((config.beta + std::sqrt(n)) / lr + config.l2);
          break;
        }
      }
      w[i] -= lr * config.weight_decay * old;
    }
  }
};

TEST_CASE("Row optimizers: the published formulas") {
  constexpr size_t kDim = 37;  // two rounds of 16 sums, and a rest
  for (Kind kind : kAllKinds) {
    CAPTURE(static_cast<int>(kind));
    const RowOptimizer optimizer = Make(MakeConfig(kind), kDim);
    const std::vector<float> initial = RandomFloats(1, kDim, 1);
    Reference reference(MakeConfig(kind), initial);
    std::vector<float> row = initial;
    row.resize(optimizer.row_words(), 0);
    double furthest = 0;
    size_t zeros = 0;
    for (uint64_t step = 1; step <= 200; ++step) {
      const std::vector<float> gradient = RandomFloats(100 + step, kDim, 1);
      const double lr = 0.05 / static_cast<double>(step);
      optimizer.Apply(row.data(), UnalignedFloats(gradient).data(), lr);
      reference.Step(gradient, lr);
      for (size_t i = 0; i < kDim; ++i) {
        furthest = std::max(furthest, std::abs(row[i] - reference.w[i]));
        zeros += row[i] == 0;
      }
    }
    CHECK(furthest < 2e-5);
    if (kind == Kind::kFtrl) {  // L1 has held some values at zero, and others not
      CHECK(zeros > 50);
      CHECK(zeros < 200 * kDim / 2);
    }
  }
}

TEST_CASE("Row optimizers: the same bits at every level, and nothing behind the row") {
  for (Kind kind : kAllKinds) {
    for (size_t dim : {1, 3, 4, 8, 15, 16, 17, 32, 33, 64, 100}) {
      CAPTURE(static_cast<int>(kind), dim);
      std::vector<GuardedFloats> rows;
      for (KernelLevel level : AvailableKernelLevels()) {
        const RowOptimizer optimizer = Make(MakeConfig(kind), dim, **KernelsFor(level));
        std::vector<float> row = RandomFloats(dim, dim, 1);
        row.resize(optimizer.row_words(), 0);
        rows.emplace_back(row.size()).Set(row);
        for (uint64_t step = 1; step <= 5; ++step) {
          const std::vector<float> gradient = RandomFloats(step, dim, 1);
          optimizer.Apply(rows.back().data(), UnalignedFloats(gradient, step % 4).data(), 0.05);
        }
        CHECK(rows.back().GuardsIntact());
        CHECK(rows.back().SameBits(rows[0]));
      }
    }
  }
}

TEST_CASE("Row optimizers: the mean of row-wise adagrad is summed in the documented order") {
  // 16 sums, and then their sum in pairs: in any other order these squares round otherwise.
  constexpr size_t kDim = 35;
  std::vector<float> gradient = RandomFloats(5, kDim, 1);
  gradient[3] = 3000;
  std::vector<float> sums(16, 0);
  for (size_t i = 0; i < kDim; ++i) sums[i % 16] += gradient[i] * gradient[i];
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t s = 0; s < half; ++s) sums[s] += sums[s + half];
  }
  float forward = 0;
  for (const float g : gradient) forward += g * g;
  const float mean = sums[0] / static_cast<float>(kDim);
  REQUIRE(forward / static_cast<float>(kDim) != mean);
  for (KernelLevel level : AvailableKernelLevels()) {
    const RowOptimizer optimizer = Make(MakeConfig(Kind::kRowWiseAdagrad), kDim, **KernelsFor(level));
    std::vector<float> row(kDim + 1, 0);
    optimizer.Apply(row.data(), gradient.data(), 0.1);
    CHECK(row[kDim] == mean);
  }
}

TEST_CASE("Row optimizers: Adam counts the steps of the row") {
  const RowOptimizer optimizer = Make(MakeConfig(Kind::kAdam), 2);
  REQUIRE(optimizer.row_words() == 7);
  std::vector<float> row(7, 0);
  const float gradient[] = {1, 1};
  const auto t = [&] {
    uint32_t count;
    std::memcpy(&count, &row[6], sizeof count);
    return count;
  };
  for (uint32_t step = 1; step <= 3; ++step) {
    optimizer.Apply(row.data(), gradient, 0.1);
    CHECK(t() == step);
  }
  // At the end of its range it stays, and the values stay finite.
  const uint32_t last = UINT32_MAX;
  std::memcpy(&row[6], &last, sizeof last);
  optimizer.Apply(row.data(), gradient, 0.1);
  CHECK(t() == last);
  CHECK(std::isfinite(row[0]));
}

TEST_CASE("Row optimizers: values outside of their range are refused by name") {
  const auto refused = [](Kind kind, float Config::*field, float value) {
    Config config = MakeConfig(kind);
    config.*field = value;
    return std::string(RowOptimizer::Create(config, 4, BestKernels()).status().message());
  };
  CHECK(refused(Kind::kMomentum, &Config::momentum, 1) == "momentum is 1; it must be at least 0 and below 1");
  CHECK(refused(Kind::kAdam, &Config::beta1, -0.1f).find("beta1 is -0.1;") == 0);
  CHECK(refused(Kind::kAdam, &Config::beta2, NAN).find("beta2 is nan;") == 0);
  CHECK(refused(Kind::kAdagrad, &Config::epsilon, 0).find("epsilon is 0; it must be finite and above 0") ==
        0);
  CHECK(refused(Kind::kFtrl, &Config::beta, 0).find("beta is 0;") == 0);
  CHECK(refused(Kind::kFtrl, &Config::l1, -1).find("l1 is -1;") == 0);
  CHECK(refused(Kind::kFtrl, &Config::l2, INFINITY).find("l2 is inf;") == 0);
  CHECK(
      refused(Kind::kFtrl, &Config::weight_decay, 0.1f).find("weight_decay is 0.1; it must be 0 with ftrl") ==
      0);
  CHECK(refused(Kind::kSgd, &Config::weight_decay, -1).find("weight_decay is -1;") == 0);
  // A field of another optimizer is not looked at.
  CHECK(refused(Kind::kSgd, &Config::momentum, 7).empty());

  CHECK(Make(MakeConfig(Kind::kSgd), 4).CheckRate(0).ok());
  CHECK_FALSE(Make(MakeConfig(Kind::kSgd), 4).CheckRate(-1).ok());
  CHECK_FALSE(Make(MakeConfig(Kind::kSgd), 4).CheckRate(NAN).ok());
  CHECK_FALSE(Make(MakeConfig(Kind::kSgd), 4).CheckRate(1e300).ok());
  CHECK_FALSE(Make(MakeConfig(Kind::kFtrl), 4).CheckRate(0).ok());
  CHECK_FALSE(Make(MakeConfig(Kind::kFtrl), 4).CheckRate(1e-60).ok());
}

}  // namespace
}  // namespace weir
