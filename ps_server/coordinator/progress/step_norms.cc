#include "ps_server/coordinator/progress/step_norms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

// An update this many times smaller than its weights counts as 0. It is what is left of gradients of long
// ago, and its factor would exceed float32.
constexpr double kMostFactor = 1e30;

std::string NotFinite(const std::string& what) {
  return absl::StrCat("the norm of ", what, " is not finite, although each pushed gradient is");
}

}  // namespace

StepNorms::StepNorms(const v1::JobConfig& config)
    : max_norm_(config.train().clip() == v1::TrainConfig::CLIP_MEAN ? config.train().clip_norm() : 0),
      scales_tensors_(config.optimizer().type() == v1::OptimizerConfig::KIND_LAMB) {}

void StepNorms::Begin(v1::CommitStep step, size_t shards, size_t tensors) {
  const bool any = step.parts_size() > 0;
  step_ = std::move(step);
  shards_ = shards;
  gradient_ = ExactSum();
  tensors_.assign(scales_tensors_ ? tensors : 0, OfTensor());
  Enter(any && max_norm_ > 0 ? Round::kGradient : any && scales_tensors_ ? Round::kTensors : Round::kDone);
}

void StepNorms::Enter(Round round) {
  round_ = round;
  asked_.reset();
  answered_.clear();
}

double StepNorms::GradientFactor() const {
  const double norm = std::sqrt(gradient_.value());
  return max_norm_ > 0 && norm > max_norm_ ? max_norm_ / norm : 1;
}

std::optional<v1::MeasureStep> StepNorms::NextRound() {
  if (!step_.has_value() || round_ == Round::kDone || asked_.has_value()) return std::nullopt;
  asked_.emplace();
  asked_->set_step(step_->step());
  *asked_->mutable_parts() = step_->parts();
  if (round_ == Round::kTensors) asked_->set_gradient_factor(GradientFactor());
  return asked_;
}

absl::Status StepNorms::OnMeasured(uint32_t shard, const v1::StepMeasured& measured) {
  const bool fits = asked_.has_value() && measured.step() == asked_->step() &&
                    std::equal(measured.parts().begin(), measured.parts().end(), asked_->parts().begin(),
                               asked_->parts().end()) &&
                    measured.gradient_factor() == asked_->gradient_factor();
  if (!fits) return absl::InvalidArgumentError("it measured what it was not asked to");
  if (!answered_.insert(shard).second) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(const ExactSum gradient, ExactSum::Parse(measured.gradient()));
  gradient_.Add(gradient);
  for (const v1::TensorSums& sums : measured.tensors()) {
    if (sums.tensor() >= tensors_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it measured tensor ", sums.tensor(), " of ", tensors_.size()));
    }
    WEIR_ASSIGN_OR_RETURN(const ExactSum weights, ExactSum::Parse(sums.weights()));
    WEIR_ASSIGN_OR_RETURN(const ExactSum update, ExactSum::Parse(sums.update()));
    tensors_[sums.tensor()].weights.Add(weights);
    tensors_[sums.tensor()].update.Add(update);
  }
  if (answered_.size() < shards_) return absl::OkStatus();
  // With a norm that is not finite the step has no update.
  const bool scales = round_ == Round::kGradient && scales_tensors_ && std::isfinite(gradient_.value());
  Enter(scales ? Round::kTensors : Round::kDone);
  return absl::OkStatus();
}

std::optional<StepNorms::Commit> StepNorms::Ready(const ModelSpec& model) const {
  if (!step_.has_value() || round_ != Round::kDone) return std::nullopt;
  Commit commit{*step_, ""};
  if (!needed() || step_->parts().empty()) return commit;
  if (!std::isfinite(gradient_.value())) commit.not_finite = NotFinite("the mean gradient");
  if (max_norm_ > 0) commit.step.set_gradient_factor(GradientFactor());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const double weights = tensors_[i].weights.value(), update = tensors_[i].update.value();
    if (commit.not_finite.empty() && !std::isfinite(weights + update)) {
      commit.not_finite = NotFinite(
          absl::StrCat(std::isfinite(weights) ? "the update" : "the weights", " of ", model.tensors[i].name));
    }
    const double factor = update > 0 ? std::sqrt(weights) / std::sqrt(update) : 0;
    commit.step.add_tensor_factors(factor > 0 && factor <= kMostFactor ? factor : 1);
  }
  if (commit.not_finite.empty()) return commit;
  commit.step.clear_parts();
  commit.step.clear_gradient_factor();
  commit.step.clear_tensor_factors();
  return commit;
}

}  // namespace weir
