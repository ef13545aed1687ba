#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/compute_time.h"
#include "common/config/cluster_spec.h"
#include "common/system/float_pool.h"
#include "common/threads/thread.h"
#include "proto/job_config.pb.h"
#include "worker/batch_ahead.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace weir {

// Counts the time of `compute`, without the time in which it waits for the traffic's weights. With several
// replicas, that is the time in which any of them waits.
absl::StatusOr<double> CountCompute(ComputeTime* time, const Traffic& traffic,
                                    absl::FunctionRef<absl::StatusOr<double>(const Traffic&)> compute);

// The copies of a job's model that one worker computes with, each on a device. A batch is cut into equal
// shares, one per replica, and the gradients are summed in the order of the replicas. So the result depends
// on the number of replicas, but not on their speed. One replica is the plain model.
//
// Not thread-safe; runs one thread per replica inside a call.
class Replicas {
 public:
  // One replica per name of `devices`, "cpu" or "cuda:N"; a name that comes twice makes two replicas on that
  // device. The errors are those of MakeComputeBackend and Model::Create.
  static absl::StatusOr<std::unique_ptr<Replicas>> Create(const v1::JobConfig& config, const Dataset& train,
                                                          const std::vector<std::string>& devices);
  // One replica per backend.
  static absl::StatusOr<std::unique_ptr<Replicas>> On(const v1::JobConfig& config, const Dataset& train,
                                                      std::vector<std::unique_ptr<ComputeBackend>> backends);
  ~Replicas();
  static Precision PrecisionOf(const v1::ComputeConfig& config);
  // The options of a job that this many replicas compute. The next weights come while backward computes only
  // if they are prefetched. Gradients are rounded on the device if they travel as bfloat16, unless the host
  // must still add them up, clip them or take local steps with them, in float32.
  static DeviceOptions DeviceOptionsOf(const v1::JobConfig& config, size_t replicas);

  // The first replica's model. All replicas compute with its weights, and its gradients are the sum, rounded
  // if DeviceOptionsOf() says so.
  Model& model() { return *replicas_[0].model; }

  // Whether the replicas compute in the host's memory.
  bool on_host() const { return replicas_[0].backend->unified(); }

  // Host memory for Model::Bind(), pulls and pushes; the best kind for model(). Each buffer holds as many
  // floats as the model has, and the first replica's device copies to and from it at full speed. Take() runs
  // on the thread of that replica's backend, and its error is ResourceExhausted. The buffers are gone before
  // this object is.
  using HostBuffers = FloatPool<absl::StatusOr<std::shared_ptr<float>>>;
  HostBuffers& buffers() { return buffers_; }

  // The time of all gradients of these replicas (DatasetGradients).
  ComputeTime& compute_time() { return compute_time_; }

  // Computes the gradient of the mean loss over `examples` of `train` into model().gradients(), each share in
  // micro_batches parts one after another. Returns the sum of the losses. `traffic` is as in
  // Model::ForwardBackward(), for the whole gradient (`last` does not matter): a tensor's gradient is ready
  // when it is summed over all parts and replicas. Several threads may call await_weights and next_weights at
  // once; the other functions are called one at a time, forward_done before any gradient_ready. `next`: the
  // likely examples of the next call, which are prepared meanwhile; may be empty. An error is a device's or
  // the traffic's. `rows`: those that the examples need (RowsFor), whose gradients are set in
  // `row_gradients`; null if the model has no embeddings.
  absl::StatusOr<double> ComputeGradient(const Dataset& train, absl::Span<const int32_t> examples,
                                         uint32_t micro_batches, uint64_t seed, uint64_t batch,
                                         const Traffic& traffic = Traffic(),
                                         absl::Span<const int32_t> next = {},
                                         const std::vector<TableRows>* rows = nullptr,
                                         RowGradientValues* row_gradients = nullptr);

 private:
  struct Replica {
    std::unique_ptr<ComputeBackend> backend;
    std::unique_ptr<Model> model;
    RowGradientValues row_gradients;
    // The weights differ from those of the replica's last pass. A replica that gets no examples stays stale.
    bool stale = true;
    absl::StatusOr<double> loss = 0.0;
  };
  // How n examples are cut: into equal shares, one for each replica that gets some, and each share into
  // micro-batches.
  struct Cut {
    BatchAhead::Sizes sizes;             // of all micro-batches, in the examples' order
    std::vector<size_t> first_of;        // by replica: its first micro-batch; one more at the end
    std::vector<int64_t> first_example;  // by micro-batch: the position of its first example in the batch
  };
  Cut CutUp(int64_t n, uint32_t micro_batches) const;

  explicit Replicas(std::vector<Replica> replicas);
  // Adds the gradients of the tensor of all replicas, in their order, to the first replica's.
  void Sum(size_t tensor, size_t replicas);

  std::vector<Replica> replicas_;
  HostBuffers buffers_;
  BatchAhead ahead_;
  ComputeTime compute_time_;
  ThreadPool threads_;
};

// The worker's number on its host, counted from 0: how many workers (chief first, evaluators last) with the
// same host come before it in the cluster spec. If the spec is dynamic, and says nothing about other workers,
// the rank among all workers; 0 without a cluster.
uint32_t LocalRank(const std::optional<TaskEnvironment>& environment);

struct ChosenDevices {
  std::vector<std::string> names;  // "cpu" or "cuda:N", one per replica
  std::string reason;              // why auto chose it, for the log
};

// `flag` is the value of --device. auto takes the (local_rank modulo their number)-th device that `usable`
// lists, and the CPU if `usable` fails. Otherwise `usable` (cuda::UsableDevices) is not called.
// InvalidArgument: the flag is wrong. FailedPrecondition: the precision needs a GPU and auto finds none.
absl::StatusOr<ChosenDevices> ChooseDevices(absl::string_view flag, Precision precision, uint32_t local_rank,
                                            absl::FunctionRef<absl::StatusOr<std::vector<int>>()> usable);

}  // namespace weir
