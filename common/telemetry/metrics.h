#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/sync/mutex.h"

// Metrics in Prometheus' text format (version 0.0.4). Names carry their base unit (_seconds, _bytes),
// counters end in _total. All classes are thread-safe; an update is an atomic operation or two, without a
// lock.
namespace weir {

// Label values must come from a bounded set (a mode, an RPC, a worker's index), because a series is never
// removed, except from AddCallbackGauges().
using Labels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void Add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double amount);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Counts samples in buckets of fixed upper bounds (inclusive), +Inf included by itself.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void Observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  std::vector<uint64_t> counts() const;  // one a bucket, not cumulative; the last is above all bounds
  double sum() const { return sum_.value(); }

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // bounds_.size() + 1
  Gauge sum_;
};

// From 100 microseconds to a minute, for latencies in seconds.
std::vector<double> LatencyBounds();

// The metrics of one process or server. Asking again for the same name and labels gives the same object;
// objects live as long as the registry. An illegal name, or a name that is asked for with another type, is
// the program's own error, and aborts it.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  Counter& AddCounter(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Gauge& AddGauge(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Histogram& AddHistogram(absl::string_view name, absl::string_view help, const std::vector<double>& bounds,
                          const Labels& labels = {});
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
  struct Series;
  Family& GetFamily(absl::string_view name, absl::string_view help, const char* type)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Series& Get(absl::string_view name, absl::string_view help, const char* type, const Labels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Family>> families_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace weir
