#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/telemetry/logging.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The metrics that the workers' programs log, of all workers together, over about the last epoch. For people:
// no decision depends on them. A worker reports sums since it joined, so each value counts exactly once,
// however often its report is sent.
//
// Belongs to the coordinator's queue.
class LoggedMetrics {
 public:
  // Takes the newest report of one incarnation of a worker. `examples`: the job's so far. `epoch`: those of
  // an epoch. Leaves out metrics that break a rule of common/protocol/logged_metric.h, and says so in the
  // log.
  void OnReport(absl::Time now, uint64_t incarnation, const v1::WorkerReport& report, uint64_t examples,
                uint64_t epoch);
  // No further report comes of this incarnation.
  void OnGone(uint64_t incarnation) { newest_.erase(incarnation); }
  // ClusterStatus.metrics. A name has its value as of the last report that had news of it.
  void Describe(v1::ClusterStatus* status) const;

 private:
  using Metrics = std::map<std::string, v1::LoggedMetric>;  // by name
  // The totals when the job had so many examples.
  struct Mark {
    uint64_t examples = 0;
    Metrics totals;
  };
  // Forgets what is older than an epoch, and makes a mark from time to time.
  void MoveWindow(uint64_t examples, uint64_t epoch);
  // Adds what the report says and `before` does not. Returns whether there is news.
  bool Add(const v1::LoggedMetric& report, v1::LoggedMetric& before);
  // Why a report cannot be counted; empty: it can.
  std::string Fault(const v1::LoggedMetric& report) const;

  std::map<uint64_t, Metrics> newest_;  // by incarnation
  Metrics totals_;
  // By rising examples; the first is the start of the window.
  std::deque<Mark> marks_;
  // For the status.
  Metrics shown_;
  LogLimit complaints_{absl::Minutes(1)};
};

}  // namespace weir
