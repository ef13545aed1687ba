#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "client/client.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/example_order.h"
#include "worker/model/model.h"
#include "worker/replicas.h"

namespace weir {

// The training loop of one worker: asks its client for work, computes gradients, pushes them, until the job's
// examples are done. The same loop in every mode. Not thread-safe.
//
// A gradient depends on the weights and on (seed, batch) alone: the examples of a batch, their order and the
// dropout masks follow from these.
class Trainer {
 public:
  // All of them outlive the trainer. `train` and `replicas` agree in shapes; the client has joined with
  // replicas->model().spec().
  Trainer(const v1::JobConfig& config, const Dataset& train, Replicas* replicas, Client* client);

  // Returns when the job's examples are done. Internal: training diverged; otherwise the client's errors.
  absl::Status Run();

  // A push of it was acknowledged.
  bool progressed() const { return progressed_; }

 private:
  // Memory that a call in the air reads or writes is shared with it, so that the trainer may go while calls
  // are cancelled.
  using Flat = std::shared_ptr<std::vector<float>>;

  // A gradient on its way: the buffer is free again when its push is answered.
  struct Outgoing {
    Flat gradient = std::make_shared<std::vector<float>>();
    std::optional<Future<PushResult>> push;
    std::optional<Future<PushPullResult>> exchange;
  };

  absl::Status Step(const Work& work);
  // Makes model_->weights() those of the work's clock. False: that clock is past, ask for other work.
  absl::StatusOr<bool> LoadWeights(uint64_t clock);
  // The mean gradient over the work's examples, clipped, into model_->gradients().
  absl::Status ComputeGradient(const Work& work);
  void HoldBack(const Work& work) const;
  // A buffer that no push in the air reads; the error of a push that ended.
  absl::StatusOr<Outgoing*> FreeBuffer();

  const v1::JobConfig& config_;
  const Dataset& train_;
  Replicas* const replicas_;
  Model* const model_;  // of the replicas
  Client* const client_;

  ExampleOrder order_;
  std::vector<int32_t> indexes_;
  Progress progress_;

  // Pulls land here, so that the model's weights stay as they are until the next clock begins.
  Flat incoming_;
  // What the model's weights are from.
  std::optional<uint64_t> clock_;
  PullResult base_;
  bool progressed_ = false;
  // The exchange in the air, if any, pulls at this clock.
  uint64_t exchange_clock_ = 0;
  Outgoing* exchange_ = nullptr;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
};

// The model's tensors in flat memory that holds them end to end.
std::vector<MutableTensor> TensorsOf(const ModelSpec& spec, absl::Span<float> flat);
std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const float> flat);

}  // namespace weir
