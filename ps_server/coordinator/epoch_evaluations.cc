#include "ps_server/coordinator/epoch_evaluations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/protocol/part_assignment.h"

namespace weir {
namespace {

v1::EpochEvaluation ResultOf(const v1::Evaluation& evaluation, uint64_t step) {
  v1::EpochEvaluation entry;
  entry.set_step(step);
  // JSON has no NaN or infinity, and comparisons with them mean nothing.
  if (std::isfinite(evaluation.test_loss())) entry.set_test_loss(evaluation.test_loss());
  if (evaluation.test_accuracy() >= 0) entry.set_test_accuracy(evaluation.test_accuracy());
  if (evaluation.has_test_auc()) entry.set_test_auc(evaluation.test_auc());
  return entry;
}

}  // namespace

uint64_t EpochEvaluations::EndOf(uint64_t epoch) const {
  const uint64_t examples = epoch * options_.train_examples;
  const uint64_t batches = examples / options_.batch_size + (examples % options_.batch_size != 0);
  const uint64_t end = StepsFor(batches, options_.batches_a_unit);
  return InJob(epoch) ? std::min(end, options_.total) : end;
}

std::optional<uint64_t> EpochEvaluations::work_end() const {
  if (open()) return progress_;
  return options_.every_epochs > 0 && Evaluated(next_) ? std::optional(EndOf(next_)) : std::nullopt;
}

void EpochEvaluations::Restore(const google::protobuf::RepeatedPtrField<v1::EpochEvaluation>& entries) {
  entries_.assign(entries.begin(), entries.end());
  known_ = !entries_.empty();
}

void EpochEvaluations::GoTo(uint64_t progress) {
  progress_ = progress;
  due_.reset();
  asked_.reset();
  failed_.clear();
  ended_ = false;
  while (!entries_.empty()) {
    const v1::EpochEvaluation& last = entries_.back();
    const uint64_t end = EndOf(last.epoch());
    // The shards hold exactly the weights of this epoch's end again.
    const bool again = exact() && end == progress && !last.has_step();
    if (end <= progress && !again) break;
    entries_.pop_back();
  }
  if (options_.every_epochs == 0) return;
  next_ = options_.every_epochs;
  if (!entries_.empty()) {
    next_ = (entries_.back().epoch() / options_.every_epochs + 1) * options_.every_epochs;
  }
  // Skips epochs that are too old to be kept.
  const uint64_t ended = progress * options_.batches_a_unit * options_.batch_size / options_.train_examples /
                         options_.every_epochs;
  if (ended > kMostEntries) next_ = std::max(next_, (ended - kMostEntries) * options_.every_epochs);
  const auto passed = [&](uint64_t end) { return exact() ? end < progress : end <= progress; };
  while (Evaluated(next_) && passed(EndOf(next_))) {
    Miss({next_, next_, progress});
    next_ += options_.every_epochs;
  }
  Advance(progress);
}

void EpochEvaluations::SetKnown() {
  // These epochs ended before a member was there that could have read their weights.
  if (!known_ && !exact()) due_.reset();
  known_ = true;
}

void EpochEvaluations::Advance(uint64_t progress) {
  progress_ = progress;
  if (options_.every_epochs == 0) return;
  if (options_.sync && due_.has_value() && due_->progress < progress) GiveUp();
  while (Ends(progress)) {
    if (!due_.has_value()) due_ = {next_, next_, progress};
    due_->last = next_;
    next_ += options_.every_epochs;
  }
}

void EpochEvaluations::GiveUp() {
  if (due_.has_value()) Miss(*std::exchange(due_, std::nullopt));
  failed_.clear();
}

void EpochEvaluations::Ask(uint64_t incarnation, absl::Time now) {
  asked_ = {*std::exchange(due_, std::nullopt), ++orders_, incarnation, false, now};
}

std::optional<v1::EvaluationOrder> EpochEvaluations::OrderFor(uint64_t incarnation) const {
  if (!asked_.has_value() || asked_->incarnation != incarnation) return std::nullopt;
  v1::EvaluationOrder order;
  order.set_id(asked_->order);
  order.set_epoch(asked_->of.last);
  return order;
}

void EpochEvaluations::OnRead(uint64_t incarnation, const std::vector<uint64_t>& versions) {
  if (!asked_.has_value() || asked_->incarnation != incarnation) return;
  // In sync the member may have read an earlier version, for something else.
  asked_->read |= std::all_of(versions.begin(), versions.end(), [&](uint64_t version) {
    return !options_.sync || version == asked_->of.progress;
  });
}

std::optional<v1::EpochEvaluation> EpochEvaluations::OnReport(uint64_t incarnation,
                                                              const v1::Evaluation& report, uint64_t step) {
  if (!asked_.has_value() || asked_->incarnation != incarnation || asked_->order != report.order()) {
    return std::nullopt;
  }
  if (report.examples() == 0 || (options_.sync && report.version() != asked_->of.progress)) {
    failed_.insert(incarnation);
    Return();
    return std::nullopt;
  }
  Add(std::exchange(asked_, std::nullopt)->of, ResultOf(report, step));
  failed_.clear();
  return entries_.back();
}

void EpochEvaluations::OnGone(uint64_t incarnation) {
  if (asked_.has_value() && asked_->incarnation == incarnation) Return();
}

bool EpochEvaluations::OnTick(absl::Time now) {
  if (!asked_.has_value() || now - asked_->since <= options_.limit) return false;
  Miss(std::exchange(asked_, std::nullopt)->of);
  failed_.clear();
  return true;
}

void EpochEvaluations::Return() {
  const Epochs of = std::exchange(asked_, std::nullopt)->of;
  if (ended_ || (options_.sync && of.progress < progress_)) return Miss(of);
  due_ = Epochs{of.first, due_.has_value() ? due_->last : of.last, of.progress};
}

void EpochEvaluations::Final(const v1::Evaluation& evaluation, uint64_t step) {
  if (options_.every_epochs == 0 || evaluation.examples() == 0) return;
  ended_ = true;
  const v1::EpochEvaluation result = ResultOf(evaluation, step);
  if (due_.has_value()) Add(*std::exchange(due_, std::nullopt), result);
  // If the job waits, its end was evaluated already; and the job may have been stopped long before this
  // epoch.
  for (; !options_.waits && InJob(next_); next_ += options_.every_epochs) {
    Add({next_, next_, options_.total}, result);
  }
}

void EpochEvaluations::Add(const Epochs& epochs, const v1::EpochEvaluation& entry) {
  if (!known_) return;
  for (uint64_t epoch = epochs.first; epoch <= epochs.last; epoch += options_.every_epochs) {
    v1::EpochEvaluation of_this = entry;
    of_this.set_epoch(epoch);
    // A missed epoch may be added before an earlier one whose evaluation is under way.
    const auto place =
        std::upper_bound(entries_.begin(), entries_.end(), epoch,
                         [](uint64_t e, const v1::EpochEvaluation& other) { return e < other.epoch(); });
    entries_.insert(place, std::move(of_this));
  }
  if (entries_.size() > kMostEntries) entries_.erase(entries_.begin(), entries_.end() - kMostEntries);
}

}  // namespace weir
