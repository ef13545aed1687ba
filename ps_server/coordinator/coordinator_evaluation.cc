// The part of Coordinator that has the weights evaluated at the ends of epochs, and takes reports.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/best_epoch.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

std::string Describe(const v1::EpochEvaluation& entry) {
  const std::string loss = entry.has_test_loss() ? absl::StrCat(entry.test_loss()) : "not finite";
  return absl::StrCat("epoch ", entry.epoch(), " (weights of step ", entry.step(), "): test loss ", loss,
                      entry.has_test_accuracy() ? absl::StrCat(", accuracy ", entry.test_accuracy()) : "");
}

}  // namespace

void Coordinator::MakeEvaluations() {
  EpochEvaluations::Options options;
  options.sync = mode_.commits_steps;
  options.every_epochs = options_.config.evaluation().every_epochs();
  options.train_examples = size_.train_examples;
  options.batch_size = options_.config.data().batch_size();
  options.batches_a_unit = mode_.commits_steps ? size_.parts : 1;
  options.total_examples = size_.examples;
  options.total = mode_.commits_steps ? size_.steps : size_.batches;
  options.waits = WaitsForEvaluations(options_.config.evaluation());
  options.limit = absl::Seconds(options_.config.cluster().wait_seconds());
  evaluations_.emplace(options);
}

void Coordinator::HandleReport(const v1::ReportRequest& request) {
  const v1::Evaluation& evaluation = request.evaluation();
  if (evaluation.order() == 0) {
    // A late periodic evaluation must not hide the final one.
    if (evaluation_.final() && !evaluation.final()) return;
    evaluation_ = evaluation;
    if (!evaluation.final()) return;
    if (evaluations_.has_value()) evaluations_->Final(evaluation, size_.steps);
    TellNothingLeft();
    return Changed();
  }
  if (!evaluations_.has_value()) return;
  const std::optional<v1::EpochEvaluation> made =
      evaluations_->OnReport(request.caller().incarnation(), evaluation, StepOf(evaluation.version()));
  if (made.has_value()) {
    LogInfo(Describe(*made));
    if (!evaluation_.final()) evaluation_ = evaluation;
    const v1::EvaluationConfig& config = options_.config.evaluation();
    const v1::EpochEvaluation best = best_.has_value() ? best_->evaluation() : v1::EpochEvaluation();
    if (config.keep_best() && recoverable() && IsBetter(config.metric(), *made, best)) SaveBest(*made);
  }
  MaybeEvaluate();
  MaybeCommit();
}

uint64_t Coordinator::StepOf(uint64_t version) const {
  return mode_.commits_steps ? version
                             : std::min(size_.steps, version / std::max<uint32_t>(1, options_.workers));
}

std::string Coordinator::EvaluatorThatHolds() const {
  // Reading takes some milliseconds, once an epoch.
  constexpr absl::Duration kWorthSaying = absl::Seconds(1);
  if (!evaluations_.has_value() || state_ != v1::RUNNING) return "";
  const std::optional<EpochEvaluations::Holder> holder = evaluations_->holder();
  if (!holder.has_value() || now() - holder->since < kWorthSaying) return "";
  const std::string task = members_.TaskOf(holder->incarnation);
  if (evaluations_->waits()) {
    return absl::StrCat(task, " to evaluate epoch ", holder->epoch, ", which decides how the job goes on");
  }
  return absl::StrCat(task, holder->read ? " to evaluate epoch " : " to read the weights of epoch ",
                      holder->epoch, holder->read ? ", since the next one has ended" : ", to evaluate them");
}

void Coordinator::MaybeEvaluate() {
  if (!evaluations_.has_value() || state_ != v1::RUNNING || !drain_.empty()) return;
  evaluations_->Advance(progress());
  if (evaluations_->due()) {
    const std::vector<uint64_t> all = members_.Evaluators();
    if (!all.empty()) evaluations_->SetKnown();
    const auto chosen = std::find_if(all.begin(), all.end(),
                                     [&](uint64_t incarnation) { return evaluations_->MayAsk(incarnation); });
    if (chosen != all.end() && evaluations_->due()) {
      evaluations_->Ask(*chosen, now());
      Changed();
    } else if (!all.empty() || (evaluations_->waits() && !members_.workers().empty())) {
      evaluations_->GiveUp();
    }
  }
  if (evaluations_->waits()) GoOnAfterEvaluation();
}

void Coordinator::GoOnAfterEvaluation() {
  if (!evaluations_->open() && !saving_best_.has_value()) {
    if (const std::string why = WhyItStopsHere(); !why.empty()) return StopEarly(why);
    if (AllDone()) return StartDraining();
  }
  if (!SetWorkEnd()) return;
  Changed();
  ServeRanges();
  MaybeAdmit();  // idle workers may have work again
}

bool Coordinator::SetWorkEnd() {
  std::optional<uint64_t> end;
  if (evaluations_->waits()) end = saving_best_.has_value() ? progress() : evaluations_->work_end();
  if (ranges_.has_value()) ranges_->SetWorkEnd(end.value_or(std::numeric_limits<uint64_t>::max()));
  return std::exchange(work_end_, end) != end;
}

std::string Coordinator::WhyItStopsHere() const {
  if (AllDone() || !evaluations_->waits() || evaluations_->open() || !evaluations_->AtNewestEnd()) return "";
  return WhyStopped(options_.config.evaluation(), evaluations_->entries());
}

void Coordinator::StopEarly(const std::string& why) {
  stopped_early_ = why;
  LogInfo("training stops ", why);
  const uint64_t batches = mode_.commits_steps ? std::min(size_.batches, steps_.committed() * size_.parts)
                                               : ranges_->completed_batches();
  Shorten(std::min(size_.examples, batches * options_.config.data().batch_size()), batches);
  if (ranges_.has_value()) ranges_->EndHere();
  StartDraining();
}

void Coordinator::SaveBest(const v1::EpochEvaluation& epoch) {
  saving_best_ = epoch;
  checkpoints_->Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    const v1::EpochEvaluation epoch = *std::exchange(saving_best_, std::nullopt);
    if (over()) return;
    if (reply.ok()) {
      best_.emplace();
      *best_->mutable_evaluation() = epoch;
      best_->set_checkpoint(reply->step());
    } else {
      LogWarning("the weights of epoch ", epoch.epoch(),
                 ", the best so far, are not kept: ", reply.status().message());
    }
    MaybeEvaluate();
    MaybeCommit();
  });
}

}  // namespace weir
