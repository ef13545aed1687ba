#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/replicas.h"

namespace weir {

// Reads the newest consistent weights, evaluates the test set (if the data has one) and reports the result;
// as the final one with the weights' SHA-256 (little-endian float32 in tensor order).
absl::Status EvaluateAndReport(bool final, const Dataset* test, Model* model, Client* client);

// What an evaluator task does: evaluates every so often until the job's examples are done, and once more
// then. Sets *reported when a result was.
absl::Status RunEvaluator(const v1::JobConfig& config, const Dataset* test, Model* model, Client* client,
                          bool* reported);

// Evaluates the weights at epochs' ends when this member is asked to (Client::WaitEvaluation), on a thread of
// its own with a copy of the model of its own, which is made when it is first needed: training goes on
// meanwhile.
class EpochEvaluator {
 public:
  using MakeReplicas = std::function<absl::StatusOr<std::unique_ptr<Replicas>>()>;

  // All of them outlive it; `make` is called on its thread.
  EpochEvaluator(const Dataset* test, MakeReplicas make, Client* client);
  // An evaluation under way is finished, unless the client is at its end.
  ~EpochEvaluator();

 private:
  void Run();
  absl::StatusOr<EvaluationResult> Evaluate(const EvaluationOrder& order, PullResult* of);

  const Dataset* const test_;
  const MakeReplicas make_;
  Client* const client_;
  std::unique_ptr<Replicas> replicas_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace weir
