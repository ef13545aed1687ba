#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/client.h"
#include "proto/job_config.pb.h"
#include "worker/gradient_computer.h"
#include "worker/loss_watch.h"
#include "worker/weights_gate.h"

namespace weir {

// The training loop of one worker: asks its client for work, computes gradients, pushes them, until the job's
// examples are done. The same loop in every mode. Not thread-safe.
//
// Weights and gradients travel while the model computes: forward begins with the first layers' weights, the
// push with the last layers' gradients (where LeavesEarly()). With consistency.prefetch the pull of the next
// clock is under way during a whole step.
class Trainer {
 public:
  // All of them outlive the trainer. The client has joined with computer->spec().
  Trainer(const v1::JobConfig& config, GradientComputer* computer, Client* client);

  // Returns when the job's examples are done. Internal: training diverged; otherwise the client's errors.
  absl::Status Run();

  // A push of it was acknowledged.
  bool progressed() const { return progressed_; }

  // Whether pushes begin while backward computes. Not where a gradient is clipped, which takes all of it; nor
  // where others' pushes would overtake one that takes long to come, so that it is sent twice.
  static bool LeavesEarly(const v1::JobConfig& config);

 private:
  // Memory that a call in the air reads or writes is shared with it, so that the trainer may go while calls
  // are cancelled.
  using Parameters = std::shared_ptr<float>;

  // A pull in the air, alone or together with a push.
  struct Incoming {
    uint64_t clock = 0;
    Parameters weights;
    std::shared_ptr<WeightsGate> gate;
    std::optional<Future<PullResult>> pull;
    std::optional<Future<PushPullResult>> exchange;

    absl::StatusOr<PullResult> Get() const;
    // The weights, if the pull has brought them by now; null: not yet, or never.
    std::shared_ptr<const float> Peek() const;
    absl::Status Await(size_t first, size_t end) const;
  };

  absl::Status Step(const Work& work);
  // Makes weights_ those of the clock, or arriving_ the pull that brings them.
  absl::Status FindWeights(uint64_t clock);
  absl::StatusOr<std::shared_ptr<Incoming>> NewIncoming(uint64_t clock);
  absl::StatusOr<std::shared_ptr<Incoming>> BeginPull(uint64_t clock);
  // Waits for arriving_, if any, whose weights are the current ones from then on. An error leaves it.
  absl::Status Settle();
  // Counts a batch, whose losses add up to this. FAILURE_DIVERGED: train.divergence.
  absl::Status CountLoss(const Work& work, double loss);
  // The mean gradient over the work's examples, and its push.
  absl::Status ComputeAndPush(const Work& work);
  // Begins to push it, with the next pull if that is not in the air.
  absl::Status BeginPush(const Work& work, const Parameters& gradient, std::shared_ptr<GradientGate> gate);
  void HoldBack(const Work& work) const;
  // The error of a push that ended.
  absl::Status CollectPushes();
  std::vector<MutableTensor> TensorsIn(const Parameters& memory) const;

  const v1::JobConfig& config_;
  GradientComputer* const computer_;
  const ModelSpec& spec_;
  Client* const client_;
  const bool leaves_early_;
  const bool prefetch_;

  Progress progress_;
  LossWatch losses_;
  bool progressed_ = false;

  // The weights at hand: their clock (none at first), which they are, and whether nothing was computed with
  // them.
  std::optional<uint64_t> clock_;
  PullResult base_;
  Parameters weights_;
  bool fresh_ = false;
  // Brings those of the work at hand.
  std::shared_ptr<Incoming> arriving_;
  // Of a later clock.
  std::shared_ptr<Incoming> next_;
  // Pushes in the air without a pull.
  std::vector<Future<PushResult>> pushes_;
};

}  // namespace weir
