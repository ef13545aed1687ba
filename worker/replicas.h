#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/sync/thread_pool.h"
#include "proto/job_config.pb.h"
#include "worker/batch_ahead.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/parameter_buffers.h"

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
  // One a backend.
  static absl::StatusOr<std::unique_ptr<Replicas>> On(const v1::JobConfig& config, const Dataset& train,
                                                      std::vector<std::unique_ptr<ComputeBackend>> backends);
  ~Replicas();
  static Precision PrecisionOf(const v1::ComputeConfig& config);
  // Of a job computed by so many replicas. The next weights come while backward computes only where they are
  // prefetched. Gradients are rounded on the device where they travel as bfloat16, unless the host has yet to
  // add them up or to clip them, in float32.
  static DeviceOptions DeviceOptionsOf(const v1::JobConfig& config, size_t replicas);

  // The first. Its weights are those that all replicas compute with, its gradients the sum: rounded where
  // DeviceOptionsOf() says so.
  Model& model() { return *replicas_[0].model; }

  // They compute where the host's memory is.
  bool on_host() const { return replicas_[0].backend->unified(); }

  // Host memory for Model::Bind(); for model() it is the best there is.
  ParameterBuffers& buffers() { return *buffers_; }

  // The gradient of the mean loss over `examples` of `train` into model().gradients(), each share in
  // micro_batches parts one after another. Returns the sum of the losses. `traffic` is as in
  // Model::ForwardBackward(), of the whole gradient (`last` does not matter): a tensor's gradient is ready
  // when it is summed over all parts and replicas. await_weights and next_weights may be called by several
  // threads at once; all others one at a time, forward_done before any gradient_ready. `next`: the examples
  // of the next call, most likely, which are prepared meanwhile; may be empty. The error is a device's or the
  // traffic's.
  absl::StatusOr<double> ComputeGradient(const Dataset& train, absl::Span<const int32_t> examples,
                                         uint32_t micro_batches, uint64_t seed, uint64_t batch,
                                         const Model::Traffic& traffic, absl::Span<const int32_t> next = {});
  absl::StatusOr<double> ComputeGradient(const Dataset& train, absl::Span<const int32_t> examples,
                                         uint32_t micro_batches, uint64_t seed, uint64_t batch) {
    return ComputeGradient(train, examples, micro_batches, seed, batch, Model::Traffic());
  }

 private:
  struct Replica {
    std::unique_ptr<ComputeBackend> backend;
    std::unique_ptr<Model> model;
    absl::StatusOr<double> loss = 0.0;
  };
  // How n examples are cut: into equal shares, as many as there are replicas that get some, and these into
  // micro-batches.
  struct Cut {
    BatchAhead::Sizes sizes;             // of all micro-batches, in the examples' order
    std::vector<size_t> first_of;        // by replica: which of them is its first; one more at the end
    std::vector<int64_t> first_example;  // by micro-batch: its position in its share's batch
  };
  Cut CutUp(int64_t n, uint32_t micro_batches) const;

  explicit Replicas(std::vector<Replica> replicas);
  // Adds all replicas' gradients of the tensor, in their order, to the first's.
  void Sum(size_t tensor, size_t replicas);

  std::vector<Replica> replicas_;
  std::unique_ptr<ParameterBuffers> buffers_;
  BatchAhead ahead_;
  ThreadPool threads_;
};

}  // namespace weir
