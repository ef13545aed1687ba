#include "ps_server/table/row_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/portable_math.h"

namespace weir {
RowOptimizer::RowOptimizer(const v1::TableOptimizer& config, size_t dim, const Kernels& kernels)
    : kernels_(&kernels), kind_(config.type()), weight_decay_(config.weight_decay()) {
  step_.n = dim;
  step_.epsilon = config.epsilon();
  step_.root_scale = 1;
  switch (kind_) {
    case v1::TableOptimizer::KIND_SGD:
      kernel_ = kernels.sgd;
      break;
    case v1::TableOptimizer::KIND_MOMENTUM:
      kernel_ = kernels.momentum;
      value_slots_ = 1;
      step_.keep[0] = config.momentum();
      break;
    case v1::TableOptimizer::KIND_ADAGRAD:
      kernel_ = kernels.adagrad;
      value_slots_ = 1;
      break;
    case v1::TableOptimizer::KIND_ROWWISE_ADAGRAD:
    case v1::TableOptimizer::KIND_UNSPECIFIED:
      kernel_ = kernels.row_wise_adagrad;
      row_word_ = true;
      break;
    case v1::TableOptimizer::KIND_ADAM:
    case v1::TableOptimizer::KIND_ADAMW:  // Adam with weight decay
      kernel_ = kernels.adam;
      value_slots_ = 2;
      row_word_ = true;
      corrects_bias_ = true;
      beta1_ = config.beta1();
      beta2_ = config.beta2();
      step_.keep[0] = config.beta1();
      step_.keep[1] = config.beta2();
      step_.take[0] = static_cast<float>(1 - beta1_);
      step_.take[1] = static_cast<float>(1 - beta2_);
      break;
    case v1::TableOptimizer::KIND_FTRL:
      kernel_ = kernels.ftrl;
      value_slots_ = 2;
      step_.l1 = config.l1();
      step_.l2 = config.l2();
      step_.beta = config.beta();
      break;
  }
}

absl::Status RowOptimizer::CheckRate(double learning_rate) const {
  const auto rate = static_cast<float>(learning_rate);
  const bool divides = kind_ == v1::TableOptimizer::KIND_FTRL;
  if (std::isfinite(rate) && (divides ? rate > 0 : learning_rate >= 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the learning rate is ", rate, "; it must be finite and ",
                                                 divides ? "above 0" : "at least 0"));
}

void RowOptimizer::Apply(float* row, const void* gradient, double learning_rate) const {
  StepArgs step = step_;
  const size_t dim = step.n;
  step.weights_in = step.weights_out = row;
  step.gradient = gradient;
  // The only slot of row-wise adagrad is the row's own word.
  const size_t slots = std::max<size_t>(value_slots_, row_word_);
  for (size_t k = 0; k < slots; ++k) step.slots_in[k] = step.slots_out[k] = row + (k + 1) * dim;
  double rate = learning_rate;
  if (corrects_bias_) {
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
