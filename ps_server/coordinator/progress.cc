#include "ps_server/coordinator/progress.h"

#include <utility>

namespace weir {
namespace {

constexpr absl::Duration kSpeedWindow = absl::Seconds(5);
// The most reports that are kept; if more come, the loss covers a shorter time.
constexpr size_t kMaxHistory = 100'000;

}  // namespace

void ProgressMeter::OnReport(uint64_t incarnation, const v1::WorkerReport& report) {
  v1::WorkerReport& last = newest_[incarnation];
  if (report.examples() <= last.examples()) return;
  totals_.examples += report.examples() - last.examples();
  totals_.loss_sum += report.loss_sum() - last.loss_sum();
  last = report;
  if (history_.empty()) history_.push_back({});
  history_.push_back(totals_);
  while (history_.size() > kMaxHistory ||
         (history_.size() > 2 && totals_.examples - history_[1].examples >= loss_window_)) {
    history_.pop_front();
  }
}

void ProgressMeter::Sample(absl::Time now, uint64_t examples) {
  // A job may go back.
  if (!samples_.empty() && examples < samples_.back().second) samples_.clear();
  samples_.emplace_back(now, examples);
  while (samples_.size() > 2 && now - samples_[1].first >= kSpeedWindow) samples_.pop_front();
}

std::optional<double> ProgressMeter::train_loss() const {
  if (history_.empty()) return std::nullopt;
  const Totals& first = history_.front();
  return (totals_.loss_sum - first.loss_sum) / static_cast<double>(totals_.examples - first.examples);
}

std::optional<double> ProgressMeter::last_epoch_loss() const {
  Totals last;
  // Exact, and so the same in any order (WorkerReport.last_loss_sum).
  for (const auto& [incarnation, report] : newest_) {
    last.examples += report.last_examples();
    last.loss_sum += report.last_loss_sum();
  }
  if (last.examples == 0) return std::nullopt;
  return last.loss_sum / static_cast<double>(last.examples);
}

double ProgressMeter::examples_per_second() const {
  if (samples_.size() < 2) return 0;
  const double seconds = absl::ToDoubleSeconds(samples_.back().first - samples_.front().first);
  return seconds > 0 ? static_cast<double>(samples_.back().second - samples_.front().second) / seconds : 0;
}

}  // namespace weir
