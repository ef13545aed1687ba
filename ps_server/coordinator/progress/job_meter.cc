#include "ps_server/coordinator/progress/job_meter.h"

#include <algorithm>

namespace weir {
namespace {

constexpr absl::Duration kSpeedWindow = absl::Seconds(5);
// At most this many reports are kept. If more come, the loss covers a shorter time.
constexpr size_t kMaxHistory = 100'000;

}  // namespace

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
  train_examples_ = train_examples;
  reports_ = {};
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
  if (train_examples_ == 0) return;
  v1::WorkerReport& last = reports_.newest[incarnation];
  if (report.examples() <= last.examples()) return;
  Totals& totals = reports_.totals;
  totals.examples += report.examples() - last.examples();
  totals.loss_sum += report.loss_sum() - last.loss_sum();
  last = report;
  std::deque<Totals>& history = reports_.history;
  if (history.empty()) history.push_back({});
  history.push_back(totals);
  while (history.size() > kMaxHistory ||
         (history.size() > 2 && totals.examples - history[1].examples >= train_examples_)) {
    history.pop_front();
  }
}

void JobMeter::Sample(absl::Time now, uint64_t examples, bool running) {
  if (train_examples_ == 0) return;
  if (running) {
    auto& samples = reports_.samples;
    // A job may go back.
    if (!samples.empty() && examples < samples.back().second) samples.clear();
    samples.emplace_back(now, examples);
    while (samples.size() > 2 && now - samples[1].first >= kSpeedWindow) samples.pop_front();
  }
  loss_curve_.Sample(examples, reports_.totals.examples, reports_.totals.loss_sum);
}

double JobMeter::ExamplesPerSecond() const {
  const auto& samples = reports_.samples;
  if (samples.size() < 2) return 0;
  const double seconds = absl::ToDoubleSeconds(samples.back().first - samples.front().first);
  return seconds > 0 ? static_cast<double>(samples.back().second - samples.front().second) / seconds : 0;
}

std::optional<double> JobMeter::TrainLoss() const {
  if (reports_.history.empty()) return std::nullopt;
  const Totals& first = reports_.history.front();
  const Totals& all = reports_.totals;
  return (all.loss_sum - first.loss_sum) / static_cast<double>(all.examples - first.examples);
}

std::optional<double> JobMeter::LastEpochLoss() const {
  Totals last;
  // These sums are exact, so they are the same in any order (WorkerReport.last_loss_sum).
  for (const auto& [incarnation, report] : reports_.newest) {
    last.examples += report.last_examples();
    last.loss_sum += report.last_loss_sum();
  }
  if (last.examples == 0) return std::nullopt;
  return last.loss_sum / static_cast<double>(last.examples);
}

void JobMeter::Describe(absl::Time now, bool whole, v1::ClusterStatus* status) const {
  if (started_.has_value()) status->set_seconds(absl::ToDoubleSeconds(trained(now)));
  const bool finished = status->state() == v1::DRAINING || status->state() == v1::DONE;
  const double recent = ExamplesPerSecond();
  if (!finished && recent > 0) {
    status->set_examples_per_second(recent);
  } else if (status->seconds() > 0) {
    // Only the examples since this coordinator began count, because the time, too, counts from then.
    const uint64_t trained = status->examples() - std::min(status->examples(), examples_before_);
    status->set_examples_per_second(static_cast<double>(trained) / status->seconds());
  }
  std::optional<double> loss;
  if (whole) loss = LastEpochLoss();
  if (!loss.has_value()) loss = TrainLoss();
  if (loss.has_value()) status->set_train_loss(*loss);
}

}  // namespace weir
