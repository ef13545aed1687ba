#include "worker/slow_gradients.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "common/base/random.h"

namespace weir {
namespace {

bool IsSlow(const v1::DebugConfig& config, uint64_t worker) {
  return !config.has_delayed_worker() || config.delayed_worker() == worker;
}

}  // namespace

SlowGradients::Time SlowGradients::RealTime() {
  using Seconds = std::chrono::duration<double>;
  return {[] { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); },
          [](double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }};
}

bool SlowGradients::Slow(const v1::DebugConfig& config) {
  return config.worker_delay() > 0 || config.batch_seconds() > 0;
}

double SlowGradients::Least(const v1::JobConfig& config, uint64_t worker, uint64_t batch) {
  const v1::DebugConfig& debug = config.debug();
  const auto bits = Philox(RandomKey(config.seed(), "batch_seconds"), worker, batch);
  // Without a share, slow_factor is for all batches of delayed_worker.
  const bool chosen = debug.slow_share() == 0 || UniformFloat(bits[0]) < debug.slow_share();
  const double factor = chosen && IsSlow(debug, worker) ? debug.slow_factor() : 1;
  return debug.batch_seconds() * factor * std::exp(debug.jitter() * TwoNormals(bits[1], bits[2])[0]);
}

double SlowGradients::Delay(const v1::JobConfig& config, uint64_t worker, uint64_t batch) {
  const v1::DebugConfig& debug = config.debug();
  if (!IsSlow(debug, worker)) return 0;
  const auto bits = Philox(RandomKey(config.seed(), "worker_delay"), worker, batch);
  return debug.worker_delay() * UniformFloat(bits[0]);
}

absl::StatusOr<double> SlowGradients::Compute(const Work& work, float* weights, float* gradient,
                                              WorkRows* rows, const Traffic& traffic) {
  std::once_flag began;
  double begin = time_.now();
  Traffic slow = traffic;
  if (traffic.await_weights) {
    // Replicas wait on threads of their own.
    slow.await_weights = [&](size_t first, size_t end) {
      absl::Status status = traffic.await_weights(first, end);
      std::call_once(began, [&] { begin = time_.now(); });
      return status;
    };
  }
  slow.forward_done = [&]() -> absl::Status {
    std::call_once(began, [] {});
    const double left = Least(config_, worker_, work.batch) - (time_.now() - begin);
    const double seconds = std::max(left, 0.0) + Delay(config_, worker_, work.batch);
    if (seconds > 0) time_.sleep(seconds);
    return traffic.forward_done ? traffic.forward_done() : absl::OkStatus();
  };
  return of_->Compute(work, weights, gradient, rows, slow);
}

}  // namespace weir
