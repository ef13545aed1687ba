#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/types.h"
#include "common/model/model_spec.h"
#include "worker/model/traffic.h"

namespace weir {

// Computes the gradients of a job's work, one at a time: all that a training loop knows of models, devices
// and data. Not thread-safe.
class GradientComputer {
 public:
  virtual ~GradientComputer() = default;

  virtual const ModelSpec& spec() const = 0;
  // Examples in the training set.
  virtual uint64_t train_examples() const = 0;

  // Host memory for spec().elements() floats, which hold anything: where weights come and gradients leave. It
  // goes back when the last copy does, on any thread, and may outlive the computer. ResourceExhausted.
  virtual absl::StatusOr<std::shared_ptr<float>> TakeMemory() = 0;
  // Gradients are made in the host's memory, wherever it is. False: they are copied there from a device, best
  // to TakeMemory().
  virtual bool on_host() const = 0;

  // The gradient of the mean loss over the work's examples, clipped if the job's config says so; weights and
  // gradient are all tensors of spec(), end to end. Returns the sum of the losses. `traffic` is as in
  // Model::ForwardBackward(), of the whole gradient (`last` and `queued` do not matter). await_weights and
  // next_weights may be called by several threads at once; all others one at a time, forward_done before any
  // gradient_ready. The error is a device's or the traffic's; then the memory is not in use any more.
  virtual absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient,
                                         const Traffic& traffic) = 0;
  // How to push the gradient that Compute() is making, or was the last to make.
  virtual std::vector<ConstTensor> Gradient() = 0;
};

}  // namespace weir
