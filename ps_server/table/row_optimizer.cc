#include "ps_server/table/row_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/portable_math.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

absl::Status CheckRange(const char* name, float value, bool fits, const char* allowed) {
  if (fits && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be ", allowed));
}

absl::Status Check(const RowOptimizerConfig& c) {
  using Kind = RowOptimizerConfig::Kind;
  const auto fraction = [](const char* name, float value) {
    return CheckRange(name, value, value >= 0 && value < 1, "at least 0 and below 1");
  };
  const auto not_negative = [](const char* name, float value) {
    return CheckRange(name, value, value >= 0, "finite and at least 0");
  };
  const auto positive = [](const char* name, float value) {
    return CheckRange(name, value, value > 0, "finite and above 0");
  };
  switch (c.kind) {
    case Kind::kSgd:
      break;
    case Kind::kMomentum:
      WEIR_RETURN_IF_ERROR(fraction("momentum", c.momentum));
      break;
    case Kind::kAdam:
      WEIR_RETURN_IF_ERROR(fraction("beta1", c.beta1));
      WEIR_RETURN_IF_ERROR(fraction("beta2", c.beta2));
      WEIR_RETURN_IF_ERROR(positive("epsilon", c.epsilon));
      break;
    case Kind::kAdagrad:
    case Kind::kRowWiseAdagrad:
      WEIR_RETURN_IF_ERROR(positive("epsilon", c.epsilon));
      break;
    case Kind::kFtrl:
      WEIR_RETURN_IF_ERROR(not_negative("l1", c.l1));
      WEIR_RETURN_IF_ERROR(not_negative("l2", c.l2));
      WEIR_RETURN_IF_ERROR(positive("beta", c.beta));
      return CheckRange("weight_decay", c.weight_decay, c.weight_decay == 0, "0 with ftrl, which has l2");
  }
  return not_negative("weight_decay", c.weight_decay);
}

}  // namespace

RowOptimizer::RowOptimizer(const RowOptimizerConfig& config, size_t dim, const Kernels& kernels)
    : kernels_(&kernels), kind_(config.kind), weight_decay_(config.weight_decay) {
  using Kind = RowOptimizerConfig::Kind;
  step_.n = dim;
  step_.epsilon = config.epsilon;
  step_.root_scale = 1;
  switch (config.kind) {
    case Kind::kSgd:
      kernel_ = kernels.sgd;
      break;
    case Kind::kMomentum:
      kernel_ = kernels.momentum;
      value_slots_ = 1;
      step_.keep[0] = config.momentum;
      break;
    case Kind::kAdagrad:
      kernel_ = kernels.adagrad;
      value_slots_ = 1;
      break;
    case Kind::kRowWiseAdagrad:
      kernel_ = kernels.row_wise_adagrad;
      row_word_ = true;
      break;
    case Kind::kAdam:
      kernel_ = kernels.adam;
      value_slots_ = 2;
      row_word_ = true;
      beta1_ = config.beta1;
      beta2_ = config.beta2;
      step_.keep[0] = config.beta1;
      step_.keep[1] = config.beta2;
      step_.take[0] = static_cast<float>(1 - beta1_);
      step_.take[1] = static_cast<float>(1 - beta2_);
      break;
    case Kind::kFtrl:
      kernel_ = kernels.ftrl;
      value_slots_ = 2;
      step_.l1 = config.l1;
      step_.l2 = config.l2;
      step_.beta = config.beta;
      break;
  }
}

absl::StatusOr<RowOptimizer> RowOptimizer::Create(const RowOptimizerConfig& config, size_t dim,
                                                  const Kernels& kernels) {
  WEIR_RETURN_IF_ERROR(Check(config));
  return RowOptimizer(config, dim, kernels);
}

absl::Status RowOptimizer::CheckRate(double learning_rate) const {
  if (kind_ == RowOptimizerConfig::Kind::kFtrl) {
    return CheckRange("the learning rate", static_cast<float>(learning_rate),
                      static_cast<float>(learning_rate) > 0, "finite and above 0");
  }
  return CheckRange("the learning rate", static_cast<float>(learning_rate), learning_rate >= 0,
                    "finite and at least 0");
}

void RowOptimizer::Apply(float* row, const void* gradient, double learning_rate) const {
  StepArgs step = step_;
  const size_t dim = step.n;
  step.weights_in = step.weights_out = row;
  step.gradient = gradient;
  // The only slot of row-wise adagrad is the row's own word.
  const size_t slots = std::max<size_t>(value_slots_, kind_ == RowOptimizerConfig::Kind::kRowWiseAdagrad);
  for (size_t k = 0; k < slots; ++k) step.slots_in[k] = step.slots_out[k] = row + (k + 1) * dim;
  double rate = learning_rate;
  if (kind_ == RowOptimizerConfig::Kind::kAdam) {
    float* const word = row + 3 * dim;
    uint32_t t;
    std::memcpy(&t, word, sizeof t);
    // Beyond its largest value t changes nothing any more.
    if (t < std::numeric_limits<uint32_t>::max()) ++t;
    std::memcpy(word, &t, sizeof t);
    rate /= 1 - Power(beta1_, t);
    step.root_scale = static_cast<float>(1 / std::sqrt(1 - Power(beta2_, t)));
  }
  step.rate = static_cast<float>(rate);
  step.decay = static_cast<float>(learning_rate * weight_decay_);
  kernel_(step);
}

}  // namespace weir
