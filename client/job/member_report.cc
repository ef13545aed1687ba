#include "client/job/member_report.h"

namespace weir {

void MemberReport::SetProgress(const Progress& progress, uint64_t clock) {
  MutexLock lock(mutex_);
  progress_ = progress;
  losses_.OnProgress(progress, clock);
}

absl::Status MemberReport::Log(absl::Span<const LoggedValue> values, bool last, double weight,
                               uint64_t clock) {
  MutexLock lock(mutex_);
  return metrics_.Add(values, last, weight, clock);
}

absl::Status MemberReport::LogScores(absl::string_view name, absl::Span<const float> scores,
                                     absl::Span<const float> labels) {
  MutexLock lock(mutex_);
  return metrics_.AddScores(name, scores, labels);
}

v1::WorkerReport MemberReport::Make() {
  v1::WorkerReport report;
  const double computed = compute_seconds_ ? compute_seconds_() : -1;
  if (computed >= 0) report.set_compute_seconds(computed);
  MutexLock lock(mutex_);
  report.set_examples(progress_.examples);
  report.set_batches(progress_.batches);
  report.set_loss_sum(progress_.loss_sum);
  report.set_last_examples(progress_.last_examples);
  report.set_last_loss_sum(progress_.last_loss_sum);
  losses_.Describe(&report);
  metrics_.Describe(&report);
  losses_sent_ = losses_.newest();
  return report;
}

void MemberReport::OnAcknowledged() {
  MutexLock lock(mutex_);
  losses_.OnAcknowledged(losses_sent_);
}

}  // namespace weir
