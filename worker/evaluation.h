#pragma once

#include "absl/status/status.h"
#include "client/client.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace weir {

// Reads the newest consistent weights, evaluates the test set (if the data has one) and reports the result;
// as the final one with the weights' SHA-256 (little-endian float32 in tensor order).
absl::Status EvaluateAndReport(bool final, const Dataset* test, Model* model, Client* client);

// What an evaluator task does: evaluates every so often until the job's examples are done, and once more
// then. Sets *reported when a result was.
absl::Status RunEvaluator(const v1::JobConfig& config, const Dataset* test, Model* model, Client* client,
                          bool* reported);

}  // namespace weir
