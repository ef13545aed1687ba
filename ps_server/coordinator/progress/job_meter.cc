#include "ps_server/coordinator/progress/job_meter.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

constexpr absl::Duration kSpeedWindow = absl::Seconds(5);
// At most this many reports are kept. If more come, the loss covers a shorter time.
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
  // These sums are exact, so they are the same in any order (WorkerReport.last_loss_sum).
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

void LossCurve::Sample(uint64_t examples, uint64_t reported, double loss_sum) {
  while (!pieces_.empty() && pieces_.back().examples > examples) {
    pieces_.pop_back();
    samples_in_last_ = samples_a_piece_;
  }
  if (reported <= reported_) return;
  const Piece news{examples, reported - reported_, loss_sum - loss_sum_};
  reported_ = reported;
  loss_sum_ = loss_sum;
  const bool grows =
      !pieces_.empty() && (samples_in_last_ < samples_a_piece_ || pieces_.back().examples == examples);
  if (grows) {
    Piece& last = pieces_.back();
    last = {examples, last.reported + news.reported, last.loss_sum + news.loss_sum};
    ++samples_in_last_;
    return;
  }
  if (pieces_.size() == kMostPoints) {
    std::vector<Piece> halved;
    for (size_t i = 0; i + 1 < pieces_.size(); i += 2) {
      const Piece& a = pieces_[i];
      const Piece& b = pieces_[i + 1];
      halved.push_back({b.examples, a.reported + b.reported, a.loss_sum + b.loss_sum});
    }
    pieces_ = std::move(halved);
    samples_a_piece_ *= 2;
  }
  pieces_.push_back(news);
  samples_in_last_ = 1;
}

std::vector<v1::LossPoint> LossCurve::Points() const {
  std::vector<v1::LossPoint> points;
  for (const Piece& piece : pieces_) {
    v1::LossPoint& point = points.emplace_back();
    point.set_examples(piece.examples);
    point.set_train_loss(piece.loss_sum / static_cast<double>(piece.reported));
  }
  return points;
}

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
    // Only the examples since this coordinator began count, because the time, too, counts from then.
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
