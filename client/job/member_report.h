#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/job/loss_windows.h"
#include "client/job/metric_log.h"
#include "client/types.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The report of a member's work, which ps:0 gets with each heartbeat and when the member leaves: progress,
// losses, metrics, and how long the member computed. Thread-safe.
class MemberReport {
 public:
  // As in ClientOptions.
  explicit MemberReport(std::function<double()> compute_seconds)
      : compute_seconds_(std::move(compute_seconds)) {}

  // As Client::SetProgress(). `clock`: of the newest work.
  void SetProgress(const Progress& progress, uint64_t clock);
  // As MetricLog::Add() and AddScores().
  absl::Status Log(absl::Span<const LoggedValue> values, bool last, double weight, uint64_t clock);
  absl::Status LogScores(absl::string_view name, absl::Span<const float> scores,
                         absl::Span<const float> labels);

  // The report as of now.
  v1::WorkerReport Make();
  // ps:0 has the newest report.
  void OnAcknowledged();

 private:
  const std::function<double()> compute_seconds_;
  Mutex mutex_;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  LossWindows losses_ ABSL_GUARDED_BY(mutex_);
  MetricLog metrics_ ABSL_GUARDED_BY(mutex_);
  // LossWindows::newest() of the newest report.
  uint64_t losses_sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
