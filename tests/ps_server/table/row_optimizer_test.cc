#include "ps_server/table/row_optimizer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/optimizer/kernels.h"
#include "tests/common/optimizer/testing.h"

namespace weir {
namespace {

using Config = v1::TableOptimizer;
using Kind = Config::Kind;

const std::vector<Kind> kAllKinds = {Config::KIND_SGD,     Config::KIND_MOMENTUM,
                                     Config::KIND_ADAGRAD, Config::KIND_ROWWISE_ADAGRAD,
                                     Config::KIND_ADAM,    Config::KIND_FTRL};

// Away from the defaults and from each other, so that mixing up two of them shows.
Config MakeConfig(Kind kind) {
  Config config;
  config.set_type(kind);
  config.set_momentum(0.8f);
  config.set_beta1(0.85f);
  config.set_beta2(0.95f);
  config.set_epsilon(0.03f);
  config.set_weight_decay(kind == Config::KIND_FTRL ? 0 : 0.1f);
  config.set_l1(0.4f);
  config.set_l2(0.3f);
  config.set_beta(0.7f);
  return config;
}

RowOptimizer Make(const Config& config, size_t dim, const Kernels& kernels = BestKernels()) {
  return RowOptimizer(config, dim, kernels);
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
    const double eps = config.epsilon();
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    h += squares / static_cast<double>(gradient.size());
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i], old = w[i];
      switch (config.type()) {
        case Config::KIND_SGD:
          w[i] -= lr * g;
          break;
        case Config::KIND_MOMENTUM:
          slot0[i] = config.momentum() * slot0[i] + g;
          w[i] -= lr * slot0[i];
          break;
        case Config::KIND_ADAGRAD:
          slot0[i] += g * g;
          w[i] -= lr * g / (std::sqrt(slot0[i]) + eps);
          break;
        case Config::KIND_ROWWISE_ADAGRAD:
          w[i] -= lr * g / (std::sqrt(h) + eps);
          break;
        case Config::KIND_ADAM: {
          const double b1 = config.beta1(), b2 = config.beta2();
          slot0[i] = b1 * slot0[i] + (1 - b1) * g;
          slot1[i] = b2 * slot1[i] + (1 - b2) * g * g;
          const double m_hat = slot0[i] / (1 - std::pow(b1, t)), v_hat = slot1[i] / (1 - std::pow(b2, t));
          w[i] -= lr * m_hat / (std::sqrt(v_hat) + eps);
          break;
        }
        case Config::KIND_FTRL: {
          double &z = slot0[i], &n = slot1[i];
          const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / lr;
          z += g - sigma * old;
          n += g * g;
          const double sign = z < 0 ? -1 : 1;
          w[i] = std::abs(z) <= config.l1()
                     ? 0
                     : (sign * config.l1() - z) / ((config.beta() + std::sqrt(n)) / lr + config.l2());
          break;
        }
        default:
          break;
      }
      w[i] -= lr * config.weight_decay() * old;
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
    if (kind == Config::KIND_FTRL) {  // L1 has held some values at zero, and others not
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
    const RowOptimizer optimizer = Make(MakeConfig(Config::KIND_ROWWISE_ADAGRAD), kDim, **KernelsFor(level));
    std::vector<float> row(kDim + 1, 0);
    optimizer.Apply(row.data(), gradient.data(), 0.1);
    CHECK(row[kDim] == mean);
  }
}

TEST_CASE("Row optimizers: Adam counts the steps of the row") {
  const RowOptimizer optimizer = Make(MakeConfig(Config::KIND_ADAM), 2);
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

TEST_CASE("Row optimizers: learning rates that a step cannot take are refused") {
  CHECK(Make(MakeConfig(Config::KIND_SGD), 4).CheckRate(0).ok());
  CHECK_FALSE(Make(MakeConfig(Config::KIND_SGD), 4).CheckRate(-1).ok());
  CHECK_FALSE(Make(MakeConfig(Config::KIND_SGD), 4).CheckRate(NAN).ok());
  CHECK_FALSE(Make(MakeConfig(Config::KIND_SGD), 4).CheckRate(1e300).ok());
  CHECK_FALSE(Make(MakeConfig(Config::KIND_FTRL), 4).CheckRate(0).ok());
  CHECK_FALSE(Make(MakeConfig(Config::KIND_FTRL), 4).CheckRate(1e-60).ok());
}

}  // namespace
}  // namespace weir
