// The part of Coordinator that has the weights evaluated at the ends of epochs, and takes reports.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/coordinator/epoch_evaluations.h"

namespace weir {
namespace {

std::string Describe(const v1::EpochEvaluation& entry) {
  const std::string loss = entry.has_test_loss() ? absl::StrCat(entry.test_loss()) : "not finite";
  return absl::StrCat("epoch ", entry.epoch(), " (weights of step ", entry.step(), "): test loss ", loss,
                      entry.has_test_accuracy() ? absl::StrCat(", accuracy ", entry.test_accuracy()) : "",
                      entry.has_test_auc() ? absl::StrCat(", AUC ", entry.test_auc()) : "");
}

}  // namespace

void Coordinator::HandleReport(const v1::ReportRequest& request) {
  if (over()) return;
  const v1::Evaluation& evaluation = request.evaluation();
  if (evaluation.order() == 0) {
    // Who reports the final evaluation may have read the weights before the job went back to a checkpoint.
    const bool of_end = evaluation.final() || !evaluation.weights_sha256().empty();
    if (of_end && state_ != v1::DRAINING) return;
    if (!evaluations_.OnUnasked(evaluation, size().steps)) return;
    TellNothingLeft();
    return Changed();
  }
  const std::optional<v1::EpochEvaluation> made =
      evaluations_.OnReport(request.caller().incarnation(), evaluation, StepOf(evaluation.version()));
  if (made.has_value()) {
    LogInfo(Describe(*made));
    if (checkpoints_.enabled() && evaluations_.IsBest(*made)) SaveBest(*made);
  }
  MaybeEvaluate();
  MaybeCommit();
}

uint64_t Coordinator::StepOf(uint64_t version) const {
  return mode_.commits_steps ? version
                             : std::min(size().steps, version / std::max<uint32_t>(1, options_.workers));
}

std::string Coordinator::EvaluatorThatHolds() const {
  // Reading takes some milliseconds, once an epoch.
  constexpr absl::Duration kWorthSaying = absl::Seconds(1);
  if (state_ != v1::RUNNING) return "";
  const std::optional<EpochEvaluations::Holder> holder = evaluations_.epochs().holder();
  if (!holder.has_value() || now() - holder->since < kWorthSaying) return "";
  const std::string task = members_.TaskOf(holder->incarnation);
  if (evaluations_.waits()) {
    return absl::StrCat(task, " to evaluate epoch ", holder->epoch, ", which decides how the job goes on");
  }
  return absl::StrCat(task, holder->read ? " to evaluate epoch " : " to read the weights of epoch ",
                      holder->epoch, holder->read ? ", since the next one has ended" : ", to evaluate them");
}

void Coordinator::MaybeEvaluate() {
  if (state_ != v1::RUNNING || ending_.drained()) return;
  evaluations_.epochs().Advance(progress());
  if (evaluations_.AskOneOf([this] { return members_.Evaluators(); }, !members_.workers().empty(), now()))
    Changed();
  if (evaluations_.waits()) GoOnAfterEvaluation();
}

void Coordinator::GoOnAfterEvaluation() {
  if (!evaluations_.busy()) {
    if (const std::string why = WhyItStopsHere(); !why.empty()) return StopEarly(why);
    if (AllDone()) return StartDraining();
  }
  if (!SetWorkEnd()) return;
  Changed();
  ServeRanges();
  MaybeAdmit();  // idle workers may have work again
}

bool Coordinator::SetWorkEnd() {
  const bool changed = evaluations_.SetWorkEnd(progress());
  if (ranges_.has_value()) {
    ranges_->SetWorkEnd(evaluations_.work_end().value_or(std::numeric_limits<uint64_t>::max()));
  }
  return changed;
}

std::string Coordinator::WhyItStopsHere() const { return AllDone() ? "" : evaluations_.WhyItStopsHere(); }

void Coordinator::StopEarly(const std::string& why) {
  evaluations_.StopEarly(why);
  LogInfo("training stops ", why);
  const uint64_t batches = mode_.commits_steps ? BatchesIn(steps_.committed(), size().parts, size().batches)
                                               : ranges_->completed_batches();
  declared_.Shorten(std::min(size().examples, batches * options_.config.data().batch_size()), batches);
  if (ranges_.has_value()) ranges_->EndHere();
  StartDraining();
}

void Coordinator::SaveBest(const v1::EpochEvaluation& epoch) {
  evaluations_.OnSavingBest(epoch);
  checkpoints_.Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    const bool kept = reply.ok() && !over();
    const v1::EpochEvaluation epoch =
        evaluations_.OnBestSaved(kept ? std::optional(reply->step()) : std::nullopt);
    if (over()) return;
    if (!kept) {
      LogWarning("the weights of epoch ", epoch.epoch(),
                 ", the best so far, are not kept: ", reply.status().message());
    }
    MaybeEvaluate();
    MaybeCommit();
  });
}

}  // namespace weir
