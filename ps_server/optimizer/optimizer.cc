#include "ps_server/optimizer/optimizer.h"

#include <cmath>

#include "common/base/portable_math.h"
#include "common/config/optimizer_slots.h"
#include "proto/job_config.pb.h"

namespace weir {

Optimizer::Optimizer(const v1::OptimizerConfig& config, const Kernels& kernels, bool (*step)(const StepArgs&))
    : kernels_(&kernels), step_(step) {
  for (const char* slot : OptimizerSlots(config.type())) slots_.push_back({slot, 0});
}

absl::StatusOr<Optimizer> Optimizer::Create(const v1::OptimizerConfig& config, const Kernels& kernels) {
  using Config = v1::OptimizerConfig;
  switch (config.type()) {
    case Config::KIND_SGD:
      return Optimizer(config, kernels, kernels.sgd);
    case Config::KIND_MOMENTUM:
    case Config::KIND_NESTEROV: {
      Optimizer o(config, kernels,
                  config.type() == Config::KIND_NESTEROV ? kernels.nesterov : kernels.momentum);
      o.keep_[0] = config.momentum();
      return o;
    }
    case Config::KIND_ADAGRAD: {
      Optimizer o(config, kernels, kernels.adagrad);
      o.epsilon_ = config.epsilon();
      return o;
    }
    case Config::KIND_RMSPROP: {
      Optimizer o(config, kernels, kernels.rmsprop);
      o.keep_[0] = config.decay();
      o.epsilon_ = config.epsilon();
      return o;
    }
    case Config::KIND_ADAM:
    case Config::KIND_ADAMW: {
      Optimizer o(config, kernels, kernels.adam);
      o.keep_[0] = config.beta1();
      o.keep_[1] = config.beta2();
      o.epsilon_ = config.epsilon();
      o.corrects_bias_ = true;
      return o;
    }
    case Config::KIND_UNSPECIFIED:
      break;
  }
  return absl::InvalidArgumentError(
      "optimizer.type: not set; it is one of sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw");
}

bool Optimizer::Apply(const ApplyArgs& args) const {
  StepArgs step{};
  step.n = args.n;
  step.weights_in = args.weights_in;
  step.weights_out = args.weights_out;
  step.gradient = args.gradient;
  for (size_t k = 0; k < slots_.size(); ++k) {
    step.slots_in[k] = args.slots_in[k];
    step.slots_out[k] = args.slots_out[k];
    step.keep[k] = static_cast<float>(keep_[k]);
    step.take[k] = static_cast<float>(1 - keep_[k]);
  }
  double rate = args.learning_rate;
  double root_scale = 1;
  if (corrects_bias_) {
    // lr m^ / (sqrt(v^) + epsilon). Both corrections are the same for all elements, so they are computed
    // outside of the loop.
    rate /= 1 - Power(keep_[0], args.t);
    root_scale = 1 / std::sqrt(1 - Power(keep_[1], args.t));
  }
  step.rate = static_cast<float>(rate);
  step.root_scale = static_cast<float>(root_scale);
  step.decay = static_cast<float>(args.learning_rate * args.weight_decay);
  step.clip = args.clip_weights;
  step.epsilon = epsilon_;
  step.past = args.past;
  return step_(step);
}

}  // namespace weir
