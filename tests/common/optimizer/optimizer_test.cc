#include "common/optimizer/optimizer.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "common/optimizer/kernels.h"
#include "proto/job_config.pb.h"
#include "tests/common/optimizer/testing.h"

namespace weir {
namespace {

using Config = v1::OptimizerConfig;

constexpr double kWeightDecay = 0.1;

// A rule that has kernels of its own.
struct Rule {
  Config::Kind kind;
  bool amsgrad = false;
  bool coupled = false;
  Rule(Config::Kind k, bool with_amsgrad = false, bool with_l2 = false)
      : kind(k), amsgrad(with_amsgrad), coupled(with_l2) {}
  std::string name() const {
    return Config::Kind_Name(kind) + (amsgrad ? " with amsgrad" : "") + (coupled ? " with l2" : "");
  }
};
const std::vector<Rule> kUncoupled = {Config::KIND_SGD,     Config::KIND_MOMENTUM,     Config::KIND_NESTEROV,
                                      Config::KIND_ADAGRAD, Config::KIND_RMSPROP,      Config::KIND_ADAM,
                                      Config::KIND_ADAMW,   {Config::KIND_ADAM, true}, Config::KIND_LION,
                                      Config::KIND_LAMB};
const std::vector<Rule> kAllRules = [] {
  std::vector<Rule> rules = kUncoupled;
  for (const Rule& rule : kUncoupled) rules.emplace_back(rule.kind, rule.amsgrad, true);
  return rules;
}();

// Away from the defaults and from each other, so that mixing up two of them shows; epsilon is large, so that
// its place in the formula shows.
Config MakeConfig(const Rule& rule) {
  const Config::Kind kind = rule.kind;
  Config config;
  config.set_amsgrad(rule.amsgrad);
  if (rule.coupled) config.set_l2(0.07f);
  config.set_type(kind);
  config.set_momentum(0.8f);
  config.set_decay(0.7f);
  config.set_beta1(0.85f);
  config.set_beta2(0.95f);
  config.set_epsilon(0.03f);
  return config;
}

double LearningRate(uint64_t t) { return 0.05 / static_cast<double>(t); }

// The published equations in float64, one element at a time, as literally as possible.
struct Reference {
  Config config;
  std::vector<double> w, slot0, slot1, slot2;

  Reference(const Config& c, const std::vector<float>& initial)
      : config(c), w(initial.begin(), initial.end()), slot0(w.size(), 0), slot1(slot0), slot2(slot0) {}

  void Step(const std::vector<float>& gradient, uint64_t t) {
    const double lr = LearningRate(t), eps = config.epsilon();
    for (size_t i = 0; i < w.size(); ++i) {
      const double old = w[i];
      const double g = gradient[i] + config.l2() * old;
      switch (config.type()) {
        case Config::KIND_SGD:
          w[i] -= lr * g;
          break;
        case Config::KIND_MOMENTUM:
          slot0[i] = config.momentum() * slot0[i] + g;
          w[i] -= lr * slot0[i];
          break;
        case Config::KIND_NESTEROV:
          slot0[i] = config.momentum() * slot0[i] + g;
          w[i] -= lr * (g + config.momentum() * slot0[i]);
          break;
        case Config::KIND_ADAGRAD:
          slot0[i] += g * g;
          w[i] -= lr * g / (std::sqrt(slot0[i]) + eps);
          break;
        case Config::KIND_RMSPROP: {
          const double rho = config.decay();
          slot0[i] = rho * slot0[i] + (1 - rho) * g * g;
          w[i] -= lr * g / (std::sqrt(slot0[i]) + eps);
          break;
        }
        case Config::KIND_LION: {
          const double c = config.beta1() * slot0[i] + (1 - config.beta1()) * g;
          slot0[i] = config.beta2() * slot0[i] + (1 - config.beta2()) * g;
          w[i] -= lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
          break;
        }
        default: {
          const double b1 = config.beta1(), b2 = config.beta2();
          slot0[i] = b1 * slot0[i] + (1 - b1) * g;
          slot1[i] = b2 * slot1[i] + (1 - b2) * g * g;
          slot2[i] = std::max(slot2[i], slot1[i]);
          const double m_hat = slot0[i] / (1 - std::pow(b1, t));
          const double v_hat = (config.amsgrad() ? slot2 : slot1)[i] / (1 - std::pow(b2, t));
          w[i] -= lr * m_hat / (std::sqrt(v_hat) + eps);
        }
      }
      w[i] -= lr * kWeightDecay * old;
    }
  }
};

// The place of the outputs.
enum class Outputs { kInPlace, kApart, kSlotsPastCaches, kPastCaches };

// Weights and slots under one optimizer, as a server holds them.
class Run {
 public:
  Run(const Config& config, const Kernels& kernels, const std::vector<float>& initial, Outputs outputs,
      size_t shift, float clip_weights = 0)
      : optimizer_(*Optimizer::Create(config, kernels)),
        outputs_(outputs),
        l2_(config.l2()),
        clip_weights_(clip_weights) {
    for (size_t k = 0; k < 1 + optimizer_.slots().size(); ++k) {
      now_.emplace_back(initial.size(), shift);
      // Slots that are written past the caches have the same alignment.
      next_.emplace_back(initial.size(), outputs >= Outputs::kSlotsPastCaches ? shift : shift + k);
      now_[k].Set(k == 0 ? initial : std::vector<float>(initial.size(), 0));
    }
  }

  bool Step(const void* gradient, uint64_t t) {
    const bool finite = StepPart(gradient, t, 0, now_[0].size());
    Publish();
    return finite;
  }

  bool StepPart(const void* gradient, uint64_t t, size_t begin, size_t n) {
    ApplyArgs args;
    args.n = n;
    args.weights_in = now_[0].data() + begin;
    args.weights_out = out(0).data() + begin;
    args.gradient = static_cast<const char*>(gradient) + begin * sizeof(float);
    for (size_t k = 0; k < optimizer_.slots().size(); ++k) {
      args.slots_in[k] = now_[k + 1].data() + begin;
      args.slots_out[k] = out(k + 1).data() + begin;
    }
    args.learning_rate = LearningRate(t);
    args.weight_decay = kWeightDecay;
    args.l2 = l2_;
    args.clip_weights = clip_weights_;
    if (outputs_ == Outputs::kSlotsPastCaches) args.past = PastCaches::kSlots;
    if (outputs_ == Outputs::kPastCaches) args.past = PastCaches::kSlotsAndWeights;
    args.t = t;
    return optimizer_.Apply(args);
  }

  void Publish() {
    if (outputs_ != Outputs::kInPlace) now_.swap(next_);
  }

  void Clamp(float limit) {
    for (size_t i = 0; i < now_[0].size(); ++i) {
      now_[0].data()[i] = std::clamp(now_[0].data()[i], -limit, limit);
    }
  }

  // 0: the weights, then the slots.
  const std::vector<GuardedFloats>& arrays() const { return now_; }
  const std::vector<GuardedFloats>& previous() const { return next_; }

 private:
  GuardedFloats& out(size_t k) { return outputs_ == Outputs::kInPlace ? now_[k] : next_[k]; }

  Optimizer optimizer_;
  Outputs outputs_;
  const float l2_, clip_weights_;
  std::vector<GuardedFloats> now_, next_;
};

double WorstError(const GuardedFloats& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got.data()[i] - want[i]) / std::max(1.0, std::abs(want[i]));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

TEST_CASE("Optimizer follows the published equations, with the same bits at every level, in place or not") {
  for (const Rule& rule : kAllRules) {
    const Config config = MakeConfig(rule);
    for (size_t n : {1, 7, 31, 33, 1000, 65536}) {
      CAPTURE(rule.name(), n);
      const std::vector<float> initial = RandomFloats(1, n, 1);
      Reference reference(config, initial);
      std::vector<std::unique_ptr<Run>> runs;
      for (KernelLevel level : AvailableKernelLevels()) {
        for (Outputs outputs :
             {Outputs::kApart, Outputs::kSlotsPastCaches, Outputs::kPastCaches, Outputs::kInPlace}) {
          runs.push_back(std::make_unique<Run>(config, **KernelsFor(level), initial, outputs, runs.size()));
        }
      }
      for (uint64_t t = 1; t <= 50; ++t) {
        const std::vector<float> gradient = RandomFloats(100 + t, n, 2);
        reference.Step(gradient, t);
        // Each run reads the gradient at another address.
        for (size_t r = 0; r < runs.size(); ++r) {
          REQUIRE(runs[r]->Step(UnalignedFloats(gradient, r).data(), t));
        }
      }
      CHECK(WorstError(runs[0]->arrays()[0], reference.w) < 1e-6);
      for (size_t k = 1; k < runs[0]->arrays().size(); ++k) {
        const auto& slot = k == 1 ? reference.slot0 : k == 2 ? reference.slot1 : reference.slot2;
        CHECK(WorstError(runs[0]->arrays()[k], slot) < 1e-6);
      }
      for (const auto& run : runs) {
        for (size_t k = 0; k < run->arrays().size(); ++k) {
          CHECK(run->arrays()[k].SameBits(runs[0]->arrays()[k]));
          CHECK(run->arrays()[k].GuardsIntact());
          CHECK(run->previous()[k].GuardsIntact());
        }
      }
    }
  }
}

TEST_CASE("Optimizer: an update that is not in place leaves its inputs alone") {
  for (const Rule& rule : kAllRules) {
    Run run(MakeConfig(rule), BestKernels(), RandomFloats(1, 333, 1), Outputs::kApart, 0);
    const std::vector<float> gradient = RandomFloats(2, 333, 1);
    run.Step(gradient.data(), 1);
    const std::vector<GuardedFloats> before = run.arrays();
    run.Step(gradient.data(), 2);
    for (size_t k = 0; k < before.size(); ++k) {
      CHECK(run.previous()[k].SameBits(before[k]));
      CHECK_FALSE(run.arrays()[k].SameBits(before[k]));
    }
  }
}

TEST_CASE("Optimizer: the cut into runs does not show in the bits") {
  constexpr size_t kN = 5000;
  for (const Rule& rule : kAllRules) {
    for (KernelLevel level : AvailableKernelLevels()) {
      const Kernels& kernels = **KernelsFor(level);
      Run whole(MakeConfig(rule), kernels, RandomFloats(1, kN, 1), Outputs::kApart, 0);
      Run cut(MakeConfig(rule), kernels, RandomFloats(1, kN, 1), Outputs::kApart, 0);
      RandomStream random(RandomKey(3, "cuts"), static_cast<uint64_t>(rule.kind));
      for (uint64_t t = 1; t <= 10; ++t) {
        const std::vector<float> gradient = RandomFloats(100 + t, kN, 2);
        whole.Step(gradient.data(), t);
        for (size_t begin = 0; begin < kN;) {
          const size_t n = std::min<size_t>(random.NextBelow(100), kN - begin);
          cut.StepPart(gradient.data(), t, begin, n);
          begin += n;
        }
        cut.Publish();
      }
      for (size_t k = 0; k < whole.arrays().size(); ++k) CHECK(cut.arrays()[k].SameBits(whole.arrays()[k]));
    }
  }
}

TEST_CASE("Optimizer: clipped weights have the bits of an update and a clamp after it, at every level") {
  constexpr float kClip = 0.25f;
  constexpr size_t kN = 333;
  // Beyond the range, and at its ends.
  std::vector<float> initial = RandomFloats(1, kN, 1);
  initial[3] = kClip;
  initial[40] = -kClip;
  initial[kN - 1] = 1e30f;
  for (const Rule& rule : kAllRules) {
    for (KernelLevel level : AvailableKernelLevels()) {
      for (Outputs outputs :
           {Outputs::kApart, Outputs::kSlotsPastCaches, Outputs::kPastCaches, Outputs::kInPlace}) {
        CAPTURE(rule.name(), (*KernelsFor(level))->name, static_cast<int>(outputs));
        Run expected(MakeConfig(rule), **KernelsFor(KernelLevel::kPlain), initial, Outputs::kApart, 0);
        Run clipped(MakeConfig(rule), **KernelsFor(level), initial, outputs, 1, kClip);
        size_t at_ends = 0;
        for (uint64_t t = 1; t <= 20; ++t) {
          const std::vector<float> gradient = RandomFloats(100 + t, kN, 2);
          expected.Step(gradient.data(), t);
          expected.Clamp(kClip);
          REQUIRE(clipped.Step(gradient.data(), t));
          for (size_t k = 0; k < clipped.arrays().size(); ++k) {
            REQUIRE(clipped.arrays()[k].SameBits(expected.arrays()[k]));
          }
        }
        for (size_t i = 0; i < kN; ++i) at_ends += std::abs(clipped.arrays()[0].data()[i]) == kClip;
        CHECK((at_ends > 0 && at_ends < kN));
        CHECK(clipped.arrays()[0].GuardsIntact());
      }
    }
  }
}

TEST_CASE("Optimizer: a weight that is not a number stays so when it is clipped") {
  for (KernelLevel level : AvailableKernelLevels()) {
    std::vector<float> initial(37, 0.1f);
    for (size_t at : {size_t{0}, size_t{20}, size_t{36}}) initial[at] = NAN;
    Run run(MakeConfig(Config::KIND_SGD), **KernelsFor(level), initial, Outputs::kApart, 0, 0.25f);
    CHECK(run.Step(std::vector<float>(37, 100.0f).data(), 1));
    for (size_t i = 0; i < initial.size(); ++i) {
      const float weight = run.arrays()[0].data()[i];
      CHECK((std::isnan(initial[i]) ? std::isnan(weight) : weight == -0.25f));
    }
  }
}

TEST_CASE("Optimizer: subnormal, huge and zero gradients give the same bits at every level") {
  std::vector<float> gradient = {0.0f,   -0.0f,  1e-45f, -1e-45f, 1e-40f, 1e-38f, 1e-30f, 1e-20f,
                                 -1e-6f, 1e-19f, 1e18f,  -1e19f,  3e37f,  -3e38f, 1.0f,   0.1f};
  for (int i = 0; i < 3; ++i) gradient.insert(gradient.end(), gradient.begin(), gradient.end() - i);
  for (const Rule& rule : kAllRules) {
    Config config = MakeConfig(rule);
    config.set_epsilon(1e-8f);
    const std::vector<float> initial = RandomFloats(1, gradient.size(), 1e-3f);
    Run plain(config, **KernelsFor(KernelLevel::kPlain), initial, Outputs::kApart, 0);
    plain.Step(gradient.data(), 1);
    for (KernelLevel level : AvailableKernelLevels()) {
      Run run(config, **KernelsFor(level), initial, Outputs::kApart, 0);
      run.Step(gradient.data(), 1);
      for (size_t k = 0; k < run.arrays().size(); ++k) CHECK(run.arrays()[k].SameBits(plain.arrays()[k]));
    }
  }
}

TEST_CASE("Optimizer says whether the gradient was finite") {
  for (const Rule& rule : kAllRules) {
    for (KernelLevel level : AvailableKernelLevels()) {
      for (Outputs outputs :
           {Outputs::kApart, Outputs::kSlotsPastCaches, Outputs::kPastCaches, Outputs::kInPlace}) {
        for (size_t n : {1, 15, 17, 1000}) {
          Run run(MakeConfig(rule), **KernelsFor(level), RandomFloats(1, n, 1), outputs, 0);
          std::vector<float> gradient = RandomFloats(2, n, 1);
          CAPTURE(rule.name(), static_cast<int>(outputs), n);
          CHECK(run.Step(gradient.data(), 1));
          gradient[n / 2] = FLT_MAX;
          CHECK(run.Step(gradient.data(), 2));
          gradient[n - 1] = NAN;
          CHECK_FALSE(run.Step(gradient.data(), 3));
          gradient[n - 1] = 0;
          gradient[0] = -INFINITY;
          CHECK_FALSE(run.Step(gradient.data(), 4));
          // The result depends on the gradient alone: the weights are already not finite.
          gradient[0] = 0;
          CHECK(run.Step(gradient.data(), 5));
          CHECK(run.StepPart(gradient.data(), 6, 0, 0));
        }
      }
    }
  }
}

TEST_CASE("Optimizer: Adam's first step is the learning rate, its hundred-millionth is sane") {
  for (Config::Kind kind : {Config::KIND_ADAM, Config::KIND_ADAMW}) {
    Config config;  // with the defaults
    config.set_type(kind);
    const Optimizer adam = *Optimizer::Create(config, BestKernels());
    const float w = 1, g = -0.25f, m = g, v = g * g;
    float w_out, m_out, v_out;
    const float zero = 0;
    ApplyArgs args;
    args.n = 1;
    args.weights_in = &w;
    args.weights_out = &w_out;
    args.gradient = &g;
    args.slots_in[0] = args.slots_in[1] = &zero;
    args.slots_out[0] = &m_out;
    args.slots_out[1] = &v_out;
    args.learning_rate = 0.125;
    adam.Apply(args);
    CHECK(w_out == Approx(1.125).epsilon(1e-6));
    args.t = 100'000'000;  // no correction is left
    args.slots_in[0] = &m;
    args.slots_in[1] = &v;
    adam.Apply(args);
    CHECK(w_out == Approx(1.125).epsilon(1e-6));
  }
}

TEST_CASE(
    "Optimizer: LAMB's update is what its step subtracts, at every level, whatever the rate and the range") {
  constexpr size_t n = 67;
  const std::vector<float> weights = RandomFloats(1, n, 1), gradient = RandomFloats(2, n, 1);
  const std::vector<float> m = RandomFloats(3, n, 1);
  std::vector<float> v = RandomFloats(4, n, 1);
  for (float& value : v) value = std::abs(value);
  for (const bool l2 : {false, true}) {
    const Config config = MakeConfig({Config::KIND_LAMB, false, l2});
    std::vector<float> first;
    for (KernelLevel level : AvailableKernelLevels()) {
      const Optimizer lamb = *Optimizer::Create(config, **KernelsFor(level));
      REQUIRE(lamb.scales_by_norms());
      std::vector<float> update(n), stepped(n), m_next(n), v_next(n), m_applied(n), v_applied(n);
      ApplyArgs args;
      args.n = n;
      args.weights_in = weights.data();
      args.weights_out = update.data();
      args.gradient = gradient.data();
      args.slots_in[0] = m.data();
      args.slots_in[1] = v.data();
      args.slots_out[0] = m_next.data();
      args.slots_out[1] = v_next.data();
      args.weight_decay = kWeightDecay;
      args.l2 = l2 ? config.l2() : 0;
      args.learning_rate = 77;
      args.clip_weights = 0.01f;
      args.t = 3;
      REQUIRE(lamb.Update(args));
      for (size_t i = 0; i < n; ++i) {
        const double g = gradient[i] + (l2 ? config.l2() : 0) * weights[i];
        const double m_hat = (0.85 * m[i] + 0.15 * g) / (1 - std::pow(0.85, 3));
        const double v_hat = (0.95 * v[i] + 0.05 * g * g) / (1 - std::pow(0.95, 3));
        const double want = m_hat / (std::sqrt(v_hat) + 0.03) + kWeightDecay * weights[i];
        CHECK(update[i] == Approx(want).epsilon(1e-5).margin(1e-6));
      }
      if (first.empty()) first = update;
      CHECK(update == first);
      args.learning_rate = 0.5;
      args.clip_weights = 0;
      args.weights_out = stepped.data();
      args.slots_out[0] = m_applied.data();
      args.slots_out[1] = v_applied.data();
      REQUIRE(lamb.Apply(args));
      for (size_t i = 0; i < n; ++i) {
        CHECK(stepped[i] == Approx(weights[i] - 0.5 * update[i]).epsilon(1e-5).margin(1e-6));
      }
      CHECK((m_next == m_applied && v_next == v_applied));
    }
  }
  CHECK_FALSE(Optimizer::Create(MakeConfig(Config::KIND_ADAMW), BestKernels())->scales_by_norms());
}

TEST_CASE("Optimizer: Lion's first steps have the size of the rate, and none without a gradient") {
  for (KernelLevel level : AvailableKernelLevels()) {
    Config config;
    config.set_type(Config::KIND_LION);
    const Optimizer lion = *Optimizer::Create(config, **KernelsFor(level));
    std::vector<float> w(19, 1), m(19, 0);
    std::vector<float> gradient(19, -0.0f);
    gradient[2] = gradient[17] = 1e-30f;
    gradient[3] = gradient[18] = -1e30f;
    ApplyArgs args;
    args.n = w.size();
    args.weights_in = args.weights_out = w.data();
    args.gradient = gradient.data();
    args.slots_in[0] = args.slots_out[0] = m.data();
    args.learning_rate = 0.25;
    REQUIRE(lion.Apply(args));
    for (size_t i = 0; i < w.size(); ++i) {
      CHECK(w[i] == (gradient[i] > 0 ? 0.75f : gradient[i] < 0 ? 1.25f : 1.0f));
    }
  }
}

TEST_CASE("Optimizer names its slots") {
  const std::vector<std::vector<std::string>> expected = {
      {},         {"momentum"}, {"momentum"},        {"accumulator"}, {"mean_square"},
      {"m", "v"}, {"m", "v"},   {"m", "v", "v_max"}, {"m"},           {"m", "v"}};
  for (size_t i = 0; i < kUncoupled.size(); ++i) {
    const Optimizer optimizer = *Optimizer::Create(MakeConfig(kUncoupled[i]), BestKernels());
    CHECK(std::vector<std::string>(optimizer.slots().begin(), optimizer.slots().end()) == expected[i]);
  }
  const absl::Status status = Optimizer::Create(MakeConfig(Config::KIND_UNSPECIFIED), BestKernels()).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("optimizer.type") && Catch::Contains("nesterov"));
}

}  // namespace
}  // namespace weir
