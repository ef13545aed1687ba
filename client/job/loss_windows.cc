#include "client/job/loss_windows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/protocol/limits.h"

namespace weir {
namespace {

// Of how many windows Thin() keeps two.
constexpr size_t kThinned = 4;

double MeanOf(const v1::LossWindow& window) {
  if (window.examples() == 0) return std::numeric_limits<double>::infinity();
  return window.loss_sum() / static_cast<double>(window.examples());
}

bool Lower(const v1::LossWindow& a, const v1::LossWindow& b) { return MeanOf(a) < MeanOf(b); }

}  // namespace

void LossWindows::OnProgress(const Progress& progress, uint64_t clock) {
  Progress last = std::exchange(last_, progress);
  // The caller counts anew.
  if (progress.batches < last.batches || progress.examples < last.examples ||
      progress.not_finite < last.not_finite) {
    last = {};
  }
  uint64_t batches = progress.batches - last.batches, not_finite = progress.not_finite - last.not_finite;
  const double loss_sum = progress.loss_sum - last.loss_sum;
  if (!std::isfinite(loss_sum)) not_finite += std::exchange(batches, 0);
  if (batches > 0) {
    not_finite_ = 0;
    open_.set_batches(open_.batches() + batches);
    open_.set_examples(open_.examples() + progress.examples - last.examples);
    open_.set_loss_sum(open_.loss_sum() + loss_sum);
    if (open_.batches() >= (first_closed_ ? kLossWindow : kFirstLossWindow)) {
      first_closed_ = true;
      Close(std::exchange(open_, {}), clock);
    }
  } else if (not_finite > 0 && (not_finite_ += not_finite) >= kLossWindow) {
    v1::LossWindow window;
    window.set_not_finite(std::exchange(not_finite_, 0));
    Close(std::move(window), clock);
  }
}

void LossWindows::Close(v1::LossWindow window, uint64_t clock) {
  window.set_number(++newest_);
  window.set_clock(clock);
  whole_.push_back(std::move(window));
  if (whole_.size() > kMaxLossWindows) Thin();
}

void LossWindows::Thin() {
  std::vector<v1::LossWindow> kept;
  for (auto begin = whole_.begin(); begin != whole_.end();) {
    const auto end = begin + std::min<ptrdiff_t>(kThinned, whole_.end() - begin);
    const auto [lowest, highest] = std::minmax_element(begin, end, Lower);
    kept.push_back(*std::min(lowest, highest));
    if (lowest != highest) kept.push_back(*std::max(lowest, highest));
    begin = end;
  }
  whole_ = std::move(kept);
}

void LossWindows::Describe(v1::WorkerReport* report) const {
  report->mutable_loss_windows()->Assign(whole_.begin(), whole_.end());
}

void LossWindows::OnAcknowledged(uint64_t number) {
  whole_.erase(std::remove_if(whole_.begin(), whole_.end(),
                              [number](const v1::LossWindow& window) { return window.number() <= number; }),
               whole_.end());
}

}  // namespace weir
