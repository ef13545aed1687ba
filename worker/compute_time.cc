#include "worker/compute_time.h"

#include <utility>

namespace weir {

void ComputeTime::Start(Clock::time_point now) {
  MutexLock lock(mutex_);
  if (std::exchange(running_, true)) return;
  since_ = now;
}

void ComputeTime::Stop(Clock::time_point now) {
  MutexLock lock(mutex_);
  if (std::exchange(running_, false)) total_ += now - since_;
}

double ComputeTime::Seconds(Clock::time_point now) const {
  MutexLock lock(mutex_);
  return std::chrono::duration<double>(running_ ? total_ + (now - since_) : total_).count();
}

void TimedGradients::BeginWait() {
  MutexLock lock(mutex_);
  if (waiting_++ == 0) time_->Stop();
}

void TimedGradients::EndWait() {
  MutexLock lock(mutex_);
  if (--waiting_ == 0) time_->Start();
}

absl::StatusOr<double> TimedGradients::Compute(const Work& work, float* weights, float* gradient,
                                               WorkRows* rows, const Traffic& traffic) {
  Traffic timed = traffic;
  if (traffic.await_weights) {
    timed.await_weights = [this, await = traffic.await_weights](size_t first, size_t end) {
      BeginWait();
      absl::Status status = await(first, end);
      EndWait();
      return status;
    };
  }
  time_->Start();
  absl::StatusOr<double> loss = computer_->Compute(work, weights, gradient, rows, timed);
  time_->Stop();
  return loss;
}

}  // namespace weir
