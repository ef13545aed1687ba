#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "proto/job_config.pb.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace weir {

// The copies of a job's model that one worker computes with, each on a device: a batch is cut into equal
// shares, one a replica, and their gradients are summed in the order of the replicas. So the result depends
// on the number of replicas, but not on which one is faster. One replica is the plain model.
//
// Not thread-safe; runs a thread a replica inside a call.
class Replicas {
 public:
  // One a name of `devices`, "cpu" or "cuda:N"; the same one twice is two replicas on it. The errors are
  // those of MakeComputeBackend and Model::Create.
  static absl::StatusOr<std::unique_ptr<Replicas>> Create(const v1::JobConfig& config, const Dataset& train,
                                                          const std::vector<std::string>& devices);
  static Precision PrecisionOf(const v1::ComputeConfig& config);

  // The first. Its weights are those that all replicas compute with, its gradients the sum.
  Model& model() { return *replicas_[0].model; }

  // The gradient of the mean loss over `examples` of `train` into model().gradients(), each share in
  // micro_batches parts one after another. Returns the sum of the losses. The error is a device's.
  absl::StatusOr<double> ComputeGradient(const Dataset& train, absl::Span<const int32_t> examples,
                                         uint32_t micro_batches, uint64_t seed, uint64_t batch);

 private:
  struct Replica {
    std::unique_ptr<ComputeBackend> backend;
    std::unique_ptr<Model> model;
    Batch batch;
    absl::StatusOr<double> loss = 0.0;
  };
  explicit Replicas(std::vector<Replica> replicas)
      : replicas_(std::move(replicas)), threads_(static_cast<int>(replicas_.size())) {}

  std::vector<Replica> replicas_;
  ThreadPool threads_;
};

}  // namespace weir
