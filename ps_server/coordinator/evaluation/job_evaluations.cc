#include "ps_server/coordinator/evaluation/job_evaluations.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/protocol/mode_traits.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

v1::EpochEvaluation ResultOf(const v1::Evaluation& evaluation, uint64_t step) {
  v1::EpochEvaluation entry;
  entry.set_step(step);
  // JSON has no NaN or infinity, and comparisons with them mean nothing.
  if (std::isfinite(evaluation.test_loss())) entry.set_test_loss(evaluation.test_loss());
  if (evaluation.test_accuracy() >= 0) entry.set_test_accuracy(evaluation.test_accuracy());
  if (evaluation.has_test_auc()) entry.set_test_auc(evaluation.test_auc());
  entry.set_validation(evaluation.validation());
  return entry;
}

std::string Describe(const v1::EpochEvaluation& entry) {
  const std::string loss = entry.has_test_loss() ? absl::StrCat(entry.test_loss()) : "not finite";
  return absl::StrCat("epoch ", entry.epoch(), " (weights of step ", entry.step(),
                      "): ", entry.validation() ? "validation" : "test", " loss ", loss,
                      entry.has_test_accuracy() ? absl::StrCat(", accuracy ", entry.test_accuracy()) : "",
                      entry.has_test_auc() ? absl::StrCat(", AUC ", entry.test_auc()) : "");
}

}  // namespace

JobEvaluations::JobEvaluations(const JobContext& job, Checkpoints& checkpoints,
                               std::function<void()> best_saved)
    : job_(job),
      config_(job.config),
      checkpoints_(checkpoints),
      best_saved_(std::move(best_saved)),
      sync_(TraitsOf(config_).commits_steps),
      waits_(WaitsForEvaluations(config_.evaluation())) {
  if (config_.evaluation().has_metric() &&
      config_.evaluation().metric() < v1::EvaluationConfig::METRIC_LOSS) {
    LogWarning(
        "evaluation.metric: \"test_loss\", \"test_accuracy\" and \"test_auc\" are older names of \"loss\", "
        "\"accuracy\" and \"auc\", which mean the same; use these");
  }
}

void JobEvaluations::SetLength(const JobSize& size) {
  size_ = size;
  every_ = size.batches == 0 ? 0 : config_.evaluation().every_epochs();
  next_ = every_;
  due_.reset();
  asked_.reset();
  entries_.clear();
}

void JobEvaluations::Restore(const v1::CoordinatorState& job) {
  entries_.assign(job.evaluations().begin(), job.evaluations().end());
  known_ = !entries_.empty();
  if (job.has_best()) best_ = job.best();
}

void JobEvaluations::Save(uint64_t step, v1::CoordinatorState* job) const {
  job->set_stop_reason(stopped_early_);
  for (const v1::EpochEvaluation& entry : entries_) *job->add_evaluations() = entry;
  if (saving_best_.has_value()) {
    *job->mutable_best()->mutable_evaluation() = *saving_best_;
    job->mutable_best()->set_checkpoint(step);
  } else if (best_.has_value()) {
    *job->mutable_best() = *best_;
  }
}

bool JobEvaluations::GoBack(bool at_end) {
  if (!at_end) {
    no_final_ = false;
    final() ? newest_.Clear() : newest_.clear_weights_sha256();
  }
  return asked_to_stop_ || !std::exchange(stopped_early_, "").empty();
}

// ---- epochs

uint64_t JobEvaluations::EndOf(uint64_t epoch) const {
  const uint64_t examples = epoch * size_.train_examples;
  const uint64_t batch = ExamplesOfBatch(config_);
  const uint64_t batches = examples / batch + (examples % batch != 0);
  const uint64_t end = StepsFor(batches, unit());
  return InJob(epoch) ? std::min(end, total()) : end;
}

void JobEvaluations::GoTo(uint64_t progress) {
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
  if (every_ == 0) return;
  next_ = every_;
  if (!entries_.empty()) {
    next_ = (entries_.back().epoch() / every_ + 1) * every_;
  }
  // Skips epochs that are too old to be kept.
  const uint64_t ended = progress * unit() * ExamplesOfBatch(config_) / size_.train_examples / every_;
  if (ended > kMostEntries) next_ = std::max(next_, (ended - kMostEntries) * every_);
  const auto passed = [&](uint64_t end) { return exact() ? end < progress : end <= progress; };
  while (Evaluated(next_) && passed(EndOf(next_))) {
    Miss({next_, next_, progress});
    next_ += every_;
  }
  Advance(progress);
}

void JobEvaluations::SetKnown() {
  // The epochs that are due ended before there was a member that could have read their weights.
  if (!known_ && !exact()) due_.reset();
  known_ = true;
}

void JobEvaluations::Advance(uint64_t progress) {
  progress_ = progress;
  if (every_ == 0) return;
  if (sync_ && due_.has_value() && due_->progress < progress) GiveUp();
  while (Ends(progress)) {
    if (!due_.has_value()) due_ = {next_, next_, progress};
    due_->last = next_;
    next_ += every_;
  }
}

void JobEvaluations::GiveUp() {
  if (due_.has_value()) Miss(*std::exchange(due_, std::nullopt));
  failed_.clear();
}

void JobEvaluations::Ask(uint64_t incarnation, absl::Time now) {
  asked_ = {*std::exchange(due_, std::nullopt), ++orders_, incarnation, false, now};
}

std::optional<v1::EvaluationOrder> JobEvaluations::OrderFor(uint64_t incarnation) const {
  if (!asked_.has_value() || asked_->incarnation != incarnation) return std::nullopt;
  v1::EvaluationOrder order;
  order.set_id(asked_->order);
  order.set_epoch(asked_->of.last);
  return order;
}

void JobEvaluations::OnRead(uint64_t incarnation, const std::vector<uint64_t>& versions) {
  if (!asked_.has_value() || asked_->incarnation != incarnation) return;
  // In sync the member may have read an earlier version, for something else.
  asked_->read |= std::all_of(versions.begin(), versions.end(),
                              [&](uint64_t version) { return !sync_ || version == asked_->of.progress; });
}

void JobEvaluations::OnGone(uint64_t incarnation) {
  if (asked_.has_value() && asked_->incarnation == incarnation) Return();
}

bool JobEvaluations::OnTick(absl::Time now) {
  if (!asked_.has_value() || now - asked_->since <= absl::Seconds(config_.cluster().wait_seconds()))
    return false;
  Miss(std::exchange(asked_, std::nullopt)->of);
  failed_.clear();
  return true;
}

void JobEvaluations::Return() {
  const Epochs of = std::exchange(asked_, std::nullopt)->of;
  if (ended_ || (sync_ && of.progress < progress_)) return Miss(of);
  due_ = Epochs{of.first, due_.has_value() ? due_->last : of.last, of.progress};
}

void JobEvaluations::Final(const v1::Evaluation& evaluation, uint64_t step) {
  if (every_ == 0 || evaluation.examples() == 0) return;
  ended_ = true;
  const v1::EpochEvaluation result = ResultOf(evaluation, step);
  if (due_.has_value()) Add(*std::exchange(due_, std::nullopt), result);
  // If the job waits, its end was evaluated already. It may have been stopped before this epoch.
  for (; !waits_ && stopped_early_.empty() && InJob(next_); next_ += every_) {
    Add({next_, next_, total()}, result);
  }
}

void JobEvaluations::Add(const Epochs& epochs, const v1::EpochEvaluation& entry) {
  if (!known_) return;
  for (uint64_t epoch = epochs.first; epoch <= epochs.last; epoch += every_) {
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

bool JobEvaluations::AskOneOf(absl::FunctionRef<std::vector<uint64_t>()> members, bool workers,
                              absl::Time now) {
  if (!due()) return false;
  const std::vector<uint64_t> evaluators = members();
  if (!evaluators.empty()) SetKnown();
  const auto chosen = std::find_if(evaluators.begin(), evaluators.end(),
                                   [&](uint64_t incarnation) { return failed_.count(incarnation) == 0; });
  if (chosen != evaluators.end() && due()) {
    Ask(*chosen, now);
    return true;
  }
  if (!evaluators.empty() || (waits_ && workers)) GiveUp();
  return false;
}

void JobEvaluations::OnReport(uint64_t incarnation, const v1::Evaluation& report, uint64_t step) {
  if (!asked_.has_value() || asked_->incarnation != incarnation || asked_->order != report.order()) return;
  if (report.examples() == 0 || (sync_ && report.version() != asked_->of.progress)) {
    failed_.insert(incarnation);
    return Return();
  }
  Add(std::exchange(asked_, std::nullopt)->of, ResultOf(report, step));
  failed_.clear();
  const v1::EpochEvaluation made = entries_.back();
  if (!final()) newest_ = report;
  LogInfo(Describe(made));
  if (checkpoints_.enabled() && IsBest(made)) SaveBest(made);
}

std::string JobEvaluations::WaitingFor(const MemberTable& members, absl::Time now) const {
  // Reading takes some milliseconds, once an epoch.
  constexpr absl::Duration kWorthSaying = absl::Seconds(1);
  if (!asked_.has_value() || !(Holds() || waits_) || now - asked_->since < kWorthSaying) return "";
  const std::string task = members.TaskOf(asked_->incarnation);
  if (waits_) {
    return absl::StrCat(task, " to evaluate epoch ", asked_->of.last, ", which decides how the job goes on");
  }
  return absl::StrCat(task, asked_->read ? " to evaluate epoch " : " to read the weights of epoch ",
                      asked_->of.last,
                      asked_->read ? ", since the next one has ended" : ", to evaluate them");
}

// ---- how far the job goes

bool JobEvaluations::SetWorkEnd(uint64_t progress) {
  std::optional<uint64_t> end;
  if (waits_ && saving_best_.has_value()) {
    end = progress;
  } else if (waits_ && open()) {
    end = progress_;
  } else if (waits_ && every_ > 0 && Evaluated(next_)) {
    end = EndOf(next_);
  }
  return std::exchange(work_end_, end) != end;
}

std::string JobEvaluations::WhyItStopsHere() const {
  if (!waits_ || asked_to_stop_ || open()) return "";
  if (entries_.empty() || EndOf(entries_.back().epoch()) != progress_) return "";
  return WhyStopped(config_.evaluation(), entries_);
}

void JobEvaluations::StoppedBefore(const v1::CoordinatorState& job) {
  stopped_early_ = job.stop_reason();
  // A checkpoint of a format before 1.6 does not say why.
  if (stopped_early_.empty()) stopped_early_ = WhyStopped(config_.evaluation(), entries_);
  if (stopped_early_.empty())
    stopped_early_ = "since a worker or train.max_seconds ended it, in an earlier run";
}

// ---- the best epoch

bool JobEvaluations::IsBest(const v1::EpochEvaluation& epoch) const {
  const v1::EvaluationConfig& config = config_.evaluation();
  return config.keep_best() &&
         IsBetter(config.metric(), epoch, best_.has_value() ? best_->evaluation() : v1::EpochEvaluation());
}

void JobEvaluations::SaveBest(const v1::EpochEvaluation& epoch) {
  saving_best_ = epoch;
  checkpoints_.Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    const v1::EpochEvaluation epoch = *std::exchange(saving_best_, std::nullopt);
    if (job_.over()) return;
    if (reply.ok()) {
      best_.emplace();
      *best_->mutable_evaluation() = epoch;
      best_->set_checkpoint(reply->step());
    } else {
      LogWarning("the weights of epoch ", epoch.epoch(),
                 ", the best so far, are not kept: ", reply.status().message());
    }
    best_saved_();
  });
}

// ---- the end

bool JobEvaluations::OnUnasked(const v1::Evaluation& evaluation, uint64_t steps) {
  // A late periodic evaluation must not hide the final one.
  if (final() && !evaluation.final()) return false;
  if (!evaluation.final() && evaluation.examples() == 0 && !evaluation.weights_sha256().empty()) {
    // No member evaluates the final weights, and this is their hash.
    newest_.set_weights_sha256(evaluation.weights_sha256());
    return false;
  }
  // Of the job's end, before the test set's result: it counts for the last epoch.
  if (evaluation.validation() && !evaluation.weights_sha256().empty()) Final(evaluation, steps);
  std::string hash = newest_.weights_sha256();
  newest_ = evaluation;
  if (newest_.weights_sha256().empty()) newest_.set_weights_sha256(std::move(hash));
  if (final() && !ended_) Final(evaluation, steps);
  return final();
}

}  // namespace weir
