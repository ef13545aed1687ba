#include "worker/evaluation.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/flat_tensors.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "common/telemetry/logging.h"

namespace weir {

absl::Status EvaluateAndReport(bool final, const Dataset* test, Model* model, Client* client) {
  const auto pull = client->PullSnapshot(TensorsOf(model->spec(), model->weights()));
  if (!pull.Get().ok()) return pull.Get().status();
  EvaluationResult result;
  result.final = final;
  if (test != nullptr) {
    WEIR_ASSIGN_OR_RETURN(const Evaluation evaluation, model->Evaluate(*test));
    result.test_loss = evaluation.loss;
    result.test_accuracy = evaluation.accuracy.value_or(-1);
    result.examples = static_cast<uint64_t>(evaluation.examples);
    LogInfo(final ? "final evaluation" : "evaluation", " at version ", pull.Get()->versions[0],
            ": test loss ", result.test_loss, ", accuracy ", result.test_accuracy);
  }
  if (final) {
    Sha256 hash;
    hash.Update(model->weights().data(), model->weights().size() * sizeof(float));
    result.weights_sha256 = hash.Hex();
  }
  return client->Report(*pull.Get(), result);
}

absl::Status RunEvaluator(const v1::JobConfig& config, const Dataset* test, Model* model, Client* client,
                          bool* reported) {
  const std::chrono::duration<double> interval(config.evaluation().interval_seconds());
  while (true) {
    const auto next = std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::steady_clock::duration>(interval);
    WEIR_ASSIGN_OR_RETURN(const bool draining, client->WaitDraining(next));
    WEIR_RETURN_IF_ERROR(EvaluateAndReport(draining, test, model, client));
    *reported = true;
    if (draining) return absl::OkStatus();
  }
}

}  // namespace weir
