#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/threads/mutex.h"

// Metrics in Prometheus' text format (version 0.0.4). Names carry their base unit (_seconds, _bytes),
// counters end in _total. All classes are thread-safe; an update takes no lock.
namespace weir {

// Label values must come from a bounded set (a mode, an RPC, a worker's index), because a series is never
// removed, except from AddCallbackGauges().
using Labels = std::vector<std::pair<std::string, std::string>>;

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// The metrics of one process or server. Gauges live as long as the registry. An illegal name, or one that is
// there already with another type or with the same labels, is the program's own error, and aborts it.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  Gauge& AddGauge(absl::string_view name, absl::string_view help, const Labels& labels = {});
  // `value` is called at each scrape, on the scraping thread and under the registry's lock: it must not touch
  // the registry, and what it reads must outlive the registry.
  void AddCallbackGauge(absl::string_view name, absl::string_view help, const Labels& labels,
                        std::function<double()> value);
  // AddCallbackGauge() for a family whose series come and go: `values` returns the series of this scrape.
  void AddCallbackGauges(absl::string_view name, absl::string_view help,
                         std::function<std::vector<std::pair<Labels, double>>()> values);
  void AddCallbackCounter(absl::string_view name, absl::string_view help, const Labels& labels,
                          std::function<double()> value);
  // process_resident_memory_bytes, process_cpu_seconds_total, process_open_fds, process_start_time_seconds.
  void AddProcessMetrics();

  // The whole page, families in the order of their names.
  std::string Exposition() const;

 private:
  struct Family;
  Family& GetFamily(absl::string_view name, absl::string_view help, const char* type)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(absl::string_view name, absl::string_view help, const char* type, const Labels& labels,
           std::function<double()> value);

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Family>> families_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace weir
