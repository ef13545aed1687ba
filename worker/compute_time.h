#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/threads/mutex.h"
#include "worker/gradient_computer.h"

namespace weir {

// How long this process has computed gradients. Thread-safe.
class ComputeTime {
 public:
  using Clock = std::chrono::steady_clock;

  // Two calls in turn: the process computes from now on, or does not. A call that changes nothing is ignored.
  void Start(Clock::time_point now = Clock::now());
  void Stop(Clock::time_point now = Clock::now());
  // Until now, the computation under way included.
  double Seconds(Clock::time_point now = Clock::now()) const;

 private:
  mutable Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point since_ ABSL_GUARDED_BY(mutex_);
  Clock::duration total_ ABSL_GUARDED_BY(mutex_) = Clock::duration::zero();
};

// Counts the time of another computer's Compute(), without the time in which it waits for weights. With
// several replicas, that is the time in which any of them waits.
class TimedGradients final : public GradientComputer {
 public:
  // Both outlive this object.
  TimedGradients(GradientComputer* computer, ComputeTime* time) : computer_(computer), time_(time) {}

  const ModelSpec& spec() const override { return computer_->spec(); }
  uint64_t train_examples() const override { return computer_->train_examples(); }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override { return computer_->TakeMemory(); }
  bool on_host() const override { return computer_->on_host(); }
  std::shared_ptr<WorkRows> RowsOf(const Work& work) override { return computer_->RowsOf(work); }
  std::optional<Work> LikelyNext(const Work& work) override { return computer_->LikelyNext(work); }
  absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient, WorkRows* rows,
                                 const Traffic& traffic) override;
  std::vector<ConstTensor> Gradient() override { return computer_->Gradient(); }

 private:
  void BeginWait();
  void EndWait();

  GradientComputer* const computer_;
  ComputeTime* const time_;
  Mutex mutex_;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // replicas
};

}  // namespace weir
