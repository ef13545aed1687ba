#include "ps_server/coordinator/loss_curve.h"

#include <utility>

namespace weir {

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

}  // namespace weir
