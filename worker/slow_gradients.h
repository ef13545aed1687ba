#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"
#include "worker/gradient_computer.h"

namespace weir {

// Makes a worker as slow as JobConfig.debug says, so that few cores stand for many or uneven machines: it
// sleeps between forward and backward. Each batch's time is a function of (seed, worker, Work.batch) alone.
class SlowGradients final : public GradientComputer {
 public:
  // In seconds, injected for tests. Called on the thread that computes.
  struct Time {
    std::function<double()> now;
    std::function<void(double)> sleep;
  };
  static Time RealTime();

  // Whether the config slows any worker down.
  static bool Slow(const v1::DebugConfig& config);
  // How long the gradient of a batch takes at least (debug.batch_seconds), in seconds, without
  // debug.worker_delay.
  static double Least(const v1::JobConfig& config, uint64_t worker, uint64_t batch);
  // The delay that is added to it (debug.worker_delay), in seconds.
  static double Delay(const v1::JobConfig& config, uint64_t worker, uint64_t batch);

  // `worker` is this worker's rank. `config` outlives this object.
  SlowGradients(const v1::JobConfig& config, uint64_t worker, std::unique_ptr<GradientComputer> of,
                Time time = RealTime())
      : config_(config), worker_(worker), of_(std::move(of)), time_(std::move(time)) {}

  const ModelSpec& spec() const override { return of_->spec(); }
  uint64_t train_examples() const override { return of_->train_examples(); }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override { return of_->TakeMemory(); }
  bool on_host() const override { return of_->on_host(); }
  std::shared_ptr<WorkRows> RowsOf(const Work& work) override { return of_->RowsOf(work); }
  std::optional<Work> LikelyNext(const Work& work) override { return of_->LikelyNext(work); }
  // A batch begins when its first weights are there: a wait for the servers is not part of its time.
  absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient, WorkRows* rows,
                                 const Traffic& traffic) override;
  std::vector<ConstTensor> Gradient() override { return of_->Gradient(); }

 private:
  const v1::JobConfig& config_;
  const uint64_t worker_;
  const std::unique_ptr<GradientComputer> of_;
  const Time time_;
};

}  // namespace weir
