#include "ps_server/coordinator/evaluation/divergence_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

void Lower(std::optional<double>& to, const std::optional<double>& by) {
  if (by.has_value()) to = to.has_value() ? std::min(*to, *by) : *by;
}

}  // namespace

std::optional<std::string> DivergenceWatch::OnReport(uint64_t incarnation, const v1::WorkerReport& report) {
  std::optional<double> lowest;
  if (history_.has_lowest()) lowest = history_.lowest();
  const auto [at, is_new] = workers_.try_emplace(incarnation);
  Worker& worker = at->second;
  if (is_new) worker.seen = worker.before = lowest;

  std::optional<std::string> found;
  bool judged = false;
  for (const v1::LossWindow& window : report.loss_windows()) {
    if (window.number() <= worker.newest) continue;
    worker.newest = window.number();
    if (window.batches() == 0) {
      if (window.not_finite() < kLossWindow || factor_ == 0 || found.has_value()) continue;
      found = absl::StrCat("the losses of the last ", window.not_finite(),
                           " batches are not finite (train.divergence = ", factor_, ") at clock ",
                           window.clock());
      continue;
    }
    v1::LossWindow& open = worker.open;
    open.set_batches(open.batches() + window.batches());
    open.set_examples(open.examples() + window.examples());
    open.set_loss_sum(open.loss_sum() + window.loss_sum());
    open.set_clock(window.clock());
    if (open.batches() < (history_.has_first() ? kLossWindow : kFirstLossWindow)) continue;
    std::optional<std::string> diverges = Judge(std::exchange(open, {}), worker);
    if (!found.has_value()) found = std::move(diverges);
    judged = true;
  }
  // The worker's open window began after its previous report.
  if (judged) Lower(worker.before, worker.seen);
  worker.seen.reset();
  if (history_.has_lowest()) worker.seen = history_.lowest();
  return found;
}

std::optional<std::string> DivergenceWatch::Judge(const v1::LossWindow& window, Worker& worker) {
  const double loss = window.loss_sum() / static_cast<double>(window.examples());
  if (window.examples() == 0 || std::isnan(loss)) return std::nullopt;
  if (!history_.has_first()) {
    if (!std::isfinite(loss)) return std::nullopt;
    history_.set_first(loss);
    history_.set_lowest(loss);
    worker.before = loss;
    return std::nullopt;
  }
  const double lowest = std::min(worker.before.value_or(history_.first()), history_.first());
  if (factor_ > 0 && loss > factor_ * std::max(lowest, kLeastLoss) && loss > history_.first()) {
    return absl::StrCat("the mean loss of the last ", window.batches(), " batches is ", loss,
                        ", the lowest before was ", lowest, " (train.divergence = ", factor_, ") at clock ",
                        window.clock());
  }
  history_.set_lowest(std::min(history_.lowest(), loss));
  Lower(worker.before, loss);
  return std::nullopt;
}

void DivergenceWatch::Restore(const v1::LossHistory& history) {
  history_ = history;
  workers_.clear();
}

}  // namespace weir
