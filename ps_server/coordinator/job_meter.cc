#include "ps_server/coordinator/job_meter.h"

#include <algorithm>

namespace weir {

void JobMeter::SetTrainExamples(uint64_t train_examples) {
  progress_.reset();
  if (train_examples > 0) progress_.emplace(train_examples);
}

void JobMeter::OnStart(absl::Time now, uint64_t examples) {
  if (started_.has_value()) return;
  started_ = now;
  examples_before_ = examples;
}

void JobMeter::OnEnd(absl::Time now) {
  if (!ended_.has_value()) ended_ = now;
}

void JobMeter::OnReport(uint64_t incarnation, const v1::WorkerReport& report) {
  if (progress_.has_value()) progress_->OnReport(incarnation, report);
}

void JobMeter::Sample(absl::Time now, uint64_t examples, bool running) {
  if (!progress_.has_value()) return;
  if (running) progress_->Sample(now, examples);
  loss_curve_.Sample(examples, progress_->reported_examples(), progress_->reported_loss_sum());
}

void JobMeter::Describe(absl::Time now, bool whole, v1::ClusterStatus* status) const {
  if (started_.has_value()) {
    status->set_seconds(absl::ToDoubleSeconds(ended_.value_or(now) - *started_));
  }
  const bool finished = status->state() == v1::DRAINING || status->state() == v1::DONE;
  const double recent = progress_.has_value() ? progress_->examples_per_second() : 0;
  if (!finished && recent > 0) {
    status->set_examples_per_second(recent);
  } else if (status->seconds() > 0) {
    // Only the examples of this incarnation, because the time, too, counts from its beginning.
    const uint64_t trained = status->examples() - std::min(status->examples(), examples_before_);
    status->set_examples_per_second(static_cast<double>(trained) / status->seconds());
  }
  if (!progress_.has_value()) return;
  std::optional<double> loss;
  if (whole) loss = progress_->last_epoch_loss();
  if (!loss.has_value()) loss = progress_->train_loss();
  if (loss.has_value()) status->set_train_loss(*loss);
}

}  // namespace weir
