#include "worker/evaluation.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/types.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/telemetry/logging.h"
#include "common/threads/thread.h"
#include "worker/gradient_computer.h"

namespace weir {
namespace {

// How often the thread of an EpochEvaluator looks whether it must end.
constexpr std::chrono::milliseconds kLook{100};
// How often to try a read while a server is away or others hold the pins. Each read has waited for a while
// itself.
constexpr int kReads = 5;

// OK, or how the client's membership has ended.
absl::Status Alive(Client* client) { return client->WaitDraining(std::chrono::steady_clock::now()).status(); }

EvaluationResult ResultOf(const Evaluation& evaluation) {
  EvaluationResult result;
  result.test_loss = evaluation.loss;
  result.test_accuracy = evaluation.accuracy.value_or(-1);
  result.test_auc = evaluation.auc.value_or(-1);
  result.examples = static_cast<uint64_t>(evaluation.examples);
  return result;
}

// Reads the newest consistent weights, evaluates the set (if there is one) and reports the result.
absl::Status EvaluateAndReport(const Dataset* set, bool validation, bool at_end, Model* model,
                               Client* client) {
  std::vector<TableRows> rows;
  if (set != nullptr) rows = RowsForAll(model->embeddings(), *set);
  const auto pull = client->PullSnapshot(TensorsOf(model->spec(), model->weights()), ToRead(&rows));
  if (!pull.Get().ok()) return pull.Get().status();
  model->BindRows(&rows, nullptr);
  EvaluationResult result;
  if (set != nullptr) {
    WEIR_ASSIGN_OR_RETURN(const Evaluation evaluation,
                          model->Evaluate(*set, [client] { return Alive(client); }));
    result = ResultOf(evaluation);
    LogInfo(at_end ? "final evaluation" : "evaluation", " at version ", pull.Get()->versions[0], ": ",
            validation ? "validation" : "test", " loss ", result.test_loss, ", accuracy ",
            result.test_accuracy, evaluation.auc.has_value() ? absl::StrCat(", AUC ", *evaluation.auc) : "");
  }
  result.validation = validation;
  result.final = at_end && !validation;
  if (at_end) {
    Sha256 hash;
    hash.Update(model->weights().data(), model->weights().size() * sizeof(float));
    result.weights_sha256 = hash.Hex();
  }
  return client->Report(*pull.Get(), result);
}

}  // namespace

absl::Status EvaluateEnd(const v1::JobConfig& config, const HeldOut& sets, Model* model, Client* client) {
  // Where evaluations decide how the job goes on, its end was evaluated as an epoch's.
  const bool evaluated = config.evaluation().keep_best() || config.evaluation().patience() > 0;
  if (sets.validation != nullptr && !evaluated) {
    WEIR_RETURN_IF_ERROR(
        EvaluateAndReport(sets.validation, /*validation=*/true, /*at_end=*/true, model, client));
  }
  return EvaluateAndReport(sets.test, /*validation=*/false, /*at_end=*/true, model, client);
}

absl::Status RunEvaluator(const v1::JobConfig& config, const HeldOut& sets, Model* model, Client* client) {
  const std::chrono::duration<double> interval(config.evaluation().interval_seconds());
  while (true) {
    const auto next = std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::steady_clock::duration>(interval);
    WEIR_ASSIGN_OR_RETURN(const bool draining, client->WaitDraining(next));
    if (draining) return EvaluateEnd(config, sets, model, client);
    WEIR_RETURN_IF_ERROR(EvaluateAndReport(sets.while_training(), sets.validation != nullptr,
                                           /*at_end=*/false, model, client));
  }
}

EpochEvaluator::EpochEvaluator(const HeldOut& sets, MakeReplicas make, Client* client)
    : sets_(sets), make_(std::move(make)), client_(client) {}

absl::StatusOr<std::unique_ptr<EpochEvaluator>> EpochEvaluator::Start(const HeldOut& sets, MakeReplicas make,
                                                                      Client* client) {
  std::unique_ptr<EpochEvaluator> made(new EpochEvaluator(sets, std::move(make), client));
  WEIR_ASSIGN_OR_RETURN(made->thread_, MakeThread("evaluate epochs", [to = made.get()] { to->Run(); }));
  return made;
}

EpochEvaluator::~EpochEvaluator() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void EpochEvaluator::Abandon() {
  abandoned_ = true;
  stop_ = true;
}

absl::Status EpochEvaluator::GoesOn() const {
  return abandoned_ ? absl::CancelledError("the evaluation was abandoned") : Alive(client_);
}

void EpochEvaluator::Run() {
  while (!stop_) {
    const auto order = client_->WaitEvaluation(std::chrono::steady_clock::now() + kLook);
    if (!order.ok()) return;
    if (!order->has_value()) {
      if (client_->draining()) return;
      continue;
    }
    PullResult of;
    absl::StatusOr<EvaluationResult> result = Evaluate(&of);
    if (!GoesOn().ok()) return;
    if (!result.ok()) {
      LogWarning("cannot evaluate epoch ", (*order)->epoch, ": ", result.status().message());
      result.emplace();
    }
    result->order = (*order)->id;
    result->validation = sets_.validation != nullptr;
    if (absl::Status told = client_->Report(of, *result); !told.ok()) {
      LogWarning("cannot report the evaluation of epoch ", (*order)->epoch, ": ", told.message());
    }
  }
}

absl::StatusOr<EvaluationResult> EpochEvaluator::Evaluate(PullResult* of) {
  if (replicas_ == nullptr) {
    WEIR_ASSIGN_OR_RETURN(replicas_, make_());
    rows_ = RowsForAll(replicas_->model().embeddings(), *sets_.while_training());
    replicas_->model().BindRows(&rows_, nullptr);
  }
  Model& model = replicas_->model();
  absl::StatusOr<PullResult> pulled;
  for (int read = 0; read < kReads && !stop_; ++read) {
    pulled = client_->PullSnapshot(TensorsOf(model.spec(), model.weights()), ToRead(&rows_)).Take();
    if (!absl::IsUnavailable(pulled.status())) break;
  }
  WEIR_ASSIGN_OR_RETURN(*of, std::move(pulled));
  WEIR_ASSIGN_OR_RETURN(const Evaluation evaluation,
                        model.Evaluate(*sets_.while_training(), [this] { return GoesOn(); }));
  return ResultOf(evaluation);
}

}  // namespace weir
