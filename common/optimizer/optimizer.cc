#include "common/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/portable_math.h"
#include "common/config/optimizer_slots.h"
#include "proto/job_config.pb.h"

namespace weir {
namespace {

std::string TensorNames(const ModelSpec& model) {
  constexpr size_t kMost = 50;
  std::string names;
  for (size_t i = 0; i < std::min(model.tensors.size(), kMost); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", model.tensors[i].name);
  }
  if (model.tensors.size() > kMost) absl::StrAppend(&names, " and ", model.tensors.size() - kMost, " more");
  return names;
}

}  // namespace

bool GlobMatches(absl::string_view pattern, absl::string_view text) {
  // The last '*' seen takes as few characters as possible. That is enough: if an earlier '*' could take more
  // characters, the last one can take them instead.
  size_t p = 0, t = 0;
  size_t after_star = absl::string_view::npos, star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_end = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != absl::string_view::npos) {
      p = after_star;
      t = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == absl::string_view::npos;
}

absl::StatusOr<std::vector<TensorSettings>> ResolveGroups(const v1::OptimizerConfig& config,
                                                          const ModelSpec& model, absl::string_view field) {
  for (int i = 0; i < config.groups_size(); ++i) {
    const std::string& match = config.groups(i).match();
    if (std::none_of(model.tensors.begin(), model.tensors.end(),
                     [&](const TensorSpec& tensor) { return GlobMatches(match, tensor.name); })) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".groups[", i, "].match: \"", match,
                       "\" fits no tensor of the model, whose tensors are: ", TensorNames(model)));
    }
  }
  std::vector<TensorSettings> settings(model.tensors.size());
  for (size_t i = 0; i < settings.size(); ++i) {
    settings[i].weight_decay = config.weight_decay();
    settings[i].l2 = config.l2();
    settings[i].clip_weights = config.clip_weights();
    for (const v1::GroupConfig& group : config.groups()) {
      if (!GlobMatches(group.match(), model.tensors[i].name)) continue;
      settings[i].learning_rate_factor = group.learning_rate_factor();
      if (group.has_weight_decay()) settings[i].weight_decay = group.weight_decay();
      if (group.has_l2()) settings[i].l2 = group.l2();
      if (group.has_clip_weights()) settings[i].clip_weights = group.clip_weights();
      settings[i].frozen = group.frozen();
      break;
    }
  }
  return settings;
}

Optimizer::Optimizer(const v1::OptimizerConfig& config)
    : slots_(OptimizerSlots(config)), epsilon_(config.epsilon()) {}

absl::StatusOr<Optimizer> Optimizer::Create(const v1::OptimizerConfig& config, const Kernels& kernels) {
  Optimizer o(config);
  using Config = v1::OptimizerConfig;
  switch (config.type()) {
    case Config::KIND_SGD:
      o.step_ = kernels.sgd;
      return o;
    case Config::KIND_MOMENTUM:
    case Config::KIND_NESTEROV:
      o.step_ = config.type() == Config::KIND_NESTEROV ? kernels.nesterov : kernels.momentum;
      o.keep_[0] = config.momentum();
      return o;
    case Config::KIND_ADAGRAD:
      o.step_ = kernels.adagrad;
      return o;
    case Config::KIND_RMSPROP:
      o.step_ = kernels.rmsprop;
      o.keep_[0] = config.decay();
      return o;
    case Config::KIND_ADAM:
    case Config::KIND_ADAMW:
    case Config::KIND_LAMB:
      o.step_ = config.amsgrad() ? kernels.amsgrad : kernels.adam;
      if (config.type() == Config::KIND_LAMB) o.update_ = kernels.adam_update;
      o.keep_[0] = config.beta1();
      o.keep_[1] = config.beta2();
      o.corrects_bias_ = true;
      return o;
    case Config::KIND_LION:
      o.step_ = kernels.lion;
      o.keep_[0] = config.beta1();
      o.keep_[1] = config.beta2();
      return o;
    case Config::KIND_UNSPECIFIED:
      break;
  }
  return absl::InvalidArgumentError(
      "optimizer.type: not set; it is one of sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw, lion, "
      "lamb");
}

bool Optimizer::Update(ApplyArgs args) const {
  args.learning_rate = 1;
  args.clip_weights = 0;
  return update_(StepOf(args));
}

StepArgs Optimizer::StepOf(const ApplyArgs& args) const {
  StepArgs step{};
  step.n = args.n;
  step.weights_in = args.weights_in;
  step.weights_out = args.weights_out;
  step.gradient = args.gradient;
  for (size_t k = 0; k < slots_.size(); ++k) {
    step.slots_in[k] = args.slots_in[k];
    step.slots_out[k] = args.slots_out[k];
  }
  for (size_t k = 0; k < 2; ++k) {
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
  step.coupled = args.l2;
  step.clip = args.clip_weights;
  step.epsilon = epsilon_;
  step.past = args.past;
  return step;
}

}  // namespace weir
