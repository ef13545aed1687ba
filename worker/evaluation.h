#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/load_data.h"
#include "worker/model/model.h"
#include "worker/replicas.h"

namespace weir {

// The sets that a job evaluates; null: there is none.
struct HeldOut {
  HeldOut() = default;
  explicit HeldOut(const Datasets& data)
      : test(data.test.has_value() ? &*data.test : nullptr),
        validation(data.validation.has_value() ? &*data.validation : nullptr) {}
  const Dataset* while_training() const { return validation != nullptr ? validation : test; }

  const Dataset* test = nullptr;
  const Dataset* validation = nullptr;
};

// Evaluates the weights of the job's end, and reports the results: of the test set alone or, where the last
// epoch is not evaluated otherwise, first of the validation set. Each result has the weights' SHA-256
// (little-endian float32 in tensor order). Ends between two batches when the client's membership has ended,
// with its error.
absl::Status EvaluateEnd(const v1::JobConfig& config, const HeldOut& sets, Model* model, Client* client);

// The work of an evaluator task: evaluates at intervals until the job's examples are done, and then the end.
absl::Status RunEvaluator(const v1::JobConfig& config, const HeldOut& sets, Model* model, Client* client);

// Evaluates the weights at epochs' ends when this member is asked to (Client::WaitEvaluation). Does so on its
// own thread, with a copy of the model that is made when first needed, so that training continues meanwhile.
class EpochEvaluator {
 public:
  using MakeReplicas = std::function<absl::StatusOr<std::unique_ptr<Replicas>>()>;

  // The arguments outlive this; `make` is called on its thread. An error: the system gives no thread.
  static absl::StatusOr<std::unique_ptr<EpochEvaluator>> Start(const HeldOut& sets, MakeReplicas make,
                                                               Client* client);
  // Finishes an evaluation that is under way, unless it was abandoned or the client's membership has ended.
  ~EpochEvaluator();
  // There will be no more evaluations, and one that is under way ends at its next batch without a result.
  void Abandon();

 private:
  EpochEvaluator(const HeldOut& sets, MakeReplicas make, Client* client);
  void Run();
  // An error: the result of an evaluation is of no use any more.
  absl::Status GoesOn() const;
  absl::StatusOr<EvaluationResult> Evaluate(PullResult* of);

  const HeldOut sets_;
  const MakeReplicas make_;
  Client* const client_;
  std::unique_ptr<Replicas> replicas_;
  std::vector<TableRows> rows_;  // of the set
  std::atomic<bool> stop_{false}, abandoned_{false};
  std::thread thread_;
};

}  // namespace weir
