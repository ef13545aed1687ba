#include "ps_server/coordinator/job_evaluations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/mode_traits.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/best_epoch.h"

namespace weir {
namespace {

std::string Describe(const v1::EpochEvaluation& entry) {
  const std::string loss = entry.has_test_loss() ? absl::StrCat(entry.test_loss()) : "not finite";
  return absl::StrCat("epoch ", entry.epoch(), " (weights of step ", entry.step(), "): test loss ", loss,
                      entry.has_test_accuracy() ? absl::StrCat(", accuracy ", entry.test_accuracy()) : "",
                      entry.has_test_auc() ? absl::StrCat(", AUC ", entry.test_auc()) : "");
}

}  // namespace

JobEvaluations::JobEvaluations(Options options)
    : options_(std::move(options)),
      config_(*options_.config),
      waits_(WaitsForEvaluations(config_.evaluation())) {}

void JobEvaluations::SetLength(const JobSize& size) {
  epochs_ = EpochEvaluations();
  if (size.batches == 0) return;
  const bool sync = TraitsOf(config_).commits_steps;
  EpochEvaluations::Options options;
  options.sync = sync;
  options.every_epochs = config_.evaluation().every_epochs();
  options.train_examples = size.train_examples;
  options.batch_size = config_.data().batch_size();
  options.batches_a_unit = sync ? size.parts : 1;
  options.total_examples = size.examples + size.dropped;
  options.total = sync ? size.steps : size.batches;
  options.waits = waits_;
  options.limit = absl::Seconds(config_.cluster().wait_seconds());
  epochs_ = EpochEvaluations(options);
}

void JobEvaluations::Restore(const v1::CoordinatorState& job) {
  epochs_.Restore(job.evaluations());
  if (job.has_best()) best_ = job.best();
}

void JobEvaluations::Save(uint64_t step, v1::CoordinatorState* job) const {
  for (const v1::EpochEvaluation& entry : epochs_.entries()) *job->add_evaluations() = entry;
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
  return !std::exchange(stopped_early_, "").empty();
}

// ---- epochs

bool JobEvaluations::AskOneOf(absl::FunctionRef<std::vector<uint64_t>()> members, bool workers,
                              absl::Time now) {
  if (!epochs_.due()) return false;
  const std::vector<uint64_t> evaluators = members();
  if (!evaluators.empty()) epochs_.SetKnown();
  const auto chosen = std::find_if(evaluators.begin(), evaluators.end(),
                                   [&](uint64_t incarnation) { return epochs_.MayAsk(incarnation); });
  if (chosen != evaluators.end() && epochs_.due()) {
    epochs_.Ask(*chosen, now);
    return true;
  }
  if (!evaluators.empty() || (waits_ && workers)) epochs_.GiveUp();
  return false;
}

void JobEvaluations::OnReport(uint64_t incarnation, const v1::Evaluation& report, uint64_t step) {
  const std::optional<v1::EpochEvaluation> made = epochs_.OnReport(incarnation, report, step);
  if (!made.has_value()) return;
  if (!final()) newest_ = report;
  LogInfo(Describe(*made));
  if (options_.checkpoints->enabled() && IsBest(*made)) SaveBest(*made);
}

std::string JobEvaluations::WaitingFor(const MemberTable& members, absl::Time now) const {
  // Reading takes some milliseconds, once an epoch.
  constexpr absl::Duration kWorthSaying = absl::Seconds(1);
  const std::optional<EpochEvaluations::Holder> holder = epochs_.holder();
  if (!holder.has_value() || now - holder->since < kWorthSaying) return "";
  const std::string task = members.TaskOf(holder->incarnation);
  if (waits_) {
    return absl::StrCat(task, " to evaluate epoch ", holder->epoch, ", which decides how the job goes on");
  }
  return absl::StrCat(task, holder->read ? " to evaluate epoch " : " to read the weights of epoch ",
                      holder->epoch, holder->read ? ", since the next one has ended" : ", to evaluate them");
}

// ---- how far the job goes

bool JobEvaluations::SetWorkEnd(uint64_t progress) {
  std::optional<uint64_t> end;
  if (waits_) end = saving_best_.has_value() ? progress : epochs_.work_end();
  return std::exchange(work_end_, end) != end;
}

std::string JobEvaluations::WhyItStopsHere() const {
  if (!waits_ || epochs_.open() || !epochs_.AtNewestEnd()) return "";
  return WhyStopped(config_.evaluation(), epochs_.entries());
}

void JobEvaluations::StoppedBefore() { stopped_early_ = WhyStopped(config_.evaluation(), epochs_.entries()); }

// ---- the best epoch

bool JobEvaluations::IsBest(const v1::EpochEvaluation& epoch) const {
  const v1::EvaluationConfig& config = config_.evaluation();
  return config.keep_best() &&
         IsBetter(config.metric(), epoch, best_.has_value() ? best_->evaluation() : v1::EpochEvaluation());
}

void JobEvaluations::SaveBest(const v1::EpochEvaluation& epoch) {
  saving_best_ = epoch;
  options_.checkpoints->Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    const v1::EpochEvaluation epoch = *std::exchange(saving_best_, std::nullopt);
    if (options_.over()) return;
    if (reply.ok()) {
      best_.emplace();
      *best_->mutable_evaluation() = epoch;
      best_->set_checkpoint(reply->step());
    } else {
      LogWarning("the weights of epoch ", epoch.epoch(),
                 ", the best so far, are not kept: ", reply.status().message());
    }
    options_.best_saved();
  });
}

// ---- the end

bool JobEvaluations::OnUnasked(const v1::Evaluation& evaluation, uint64_t steps) {
  // A late periodic evaluation must not hide the final one.
  if (final() && !evaluation.final()) return false;
  if (!evaluation.final() && evaluation.examples() == 0 && !evaluation.weights_sha256().empty()) {
    // Nobody evaluates the final weights, and this is their hash.
    newest_.set_weights_sha256(evaluation.weights_sha256());
    return false;
  }
  std::string hash = newest_.weights_sha256();
  newest_ = evaluation;
  if (newest_.weights_sha256().empty()) newest_.set_weights_sha256(std::move(hash));
  if (final()) epochs_.Final(evaluation, steps);
  return final();
}

}  // namespace weir
