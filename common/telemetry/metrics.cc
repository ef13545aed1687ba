#include "common/telemetry/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/telemetry/escape.h"

namespace weir {
namespace {

[[noreturn]] void Die(const std::string& why) {
  fprintf(stderr, "metrics: %s\n", why.c_str());
  abort();
}

bool LegalName(absl::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

// The shortest text that reads back as the same number.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

// {a="x",b="y"}, or nothing for no labels.
std::string LabelText(const Labels& labels) {
  if (labels.empty()) return "";
  std::string out = "{";
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", name, "=\"",
                    absl::StrReplaceAll(ValidUtf8(value), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
                    "\"");
  }
  return out + "}";
}

Labels With(Labels labels, const std::string& name, const std::string& value) {
  labels.emplace_back(name, value);
  return labels;
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double OpenFiles() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return std::nan("");
  int entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries - 3;  // ".", ".." and the folder's own descriptor
}

}  // namespace

void Gauge::Add(double amount) {
  double old = value_.load(std::memory_order_relaxed);
  while (!value_.compare_exchange_weak(old, old + amount, std::memory_order_relaxed)) {
  }
}

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(new std::atomic<uint64_t>[bounds_.size() + 1]()) {}

void Histogram::Observe(double value) {
  const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.Add(value);
}

std::vector<uint64_t> Histogram::counts() const {
  std::vector<uint64_t> out;
  for (size_t i = 0; i <= bounds_.size(); ++i) out.push_back(counts_[i].load(std::memory_order_relaxed));
  return out;
}

std::vector<double> LatencyBounds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
          0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30,    60};
}

// Exactly one of the four is set; `value` serves gauges and counters alike.
struct MetricRegistry::Series {
  Labels labels;
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<Histogram> histogram;
  std::function<double()> value;
};

struct MetricRegistry::Family {
  std::string name;
  std::string help;
  std::string type;
  std::vector<std::unique_ptr<Series>> series;
  // If set, there are no other series.
  std::function<std::vector<std::pair<Labels, double>>()> values;
};

MetricRegistry::MetricRegistry() = default;
MetricRegistry::~MetricRegistry() = default;

MetricRegistry::Family& MetricRegistry::GetFamily(absl::string_view name, absl::string_view help,
                                                  const char* type) {
  if (!LegalName(name)) Die(absl::StrCat("'", name, "' is no legal name"));
  if (std::string(type) == "counter" && !absl::EndsWith(name, "_total")) {
    Die(absl::StrCat("counter ", name, " must end in _total"));
  }
  auto family = std::lower_bound(families_.begin(), families_.end(), name,
                                 [](const auto& f, absl::string_view n) { return f->name < n; });
  if (family == families_.end() || (*family)->name != name) {
    family = families_.insert(family, std::make_unique<Family>());
    (*family)->name = std::string(name);
    (*family)->help = std::string(help);
    (*family)->type = type;
  }
  if ((*family)->type != type) Die(absl::StrCat(name, " is a ", (*family)->type, ", not a ", type));
  if ((*family)->values) Die(absl::StrCat(name, " is a callback for all of its series"));
  return **family;
}

MetricRegistry::Series& MetricRegistry::Get(absl::string_view name, absl::string_view help, const char* type,
                                            const Labels& labels) {
  for (const auto& [label, value] : labels) {
    if (!LegalName(label) || label == "le") Die(absl::StrCat(name, ": '", label, "' is no legal label"));
  }
  Family& family = GetFamily(name, help, type);
  for (const auto& series : family.series) {
    if (series->labels == labels) return *series;
  }
  family.series.push_back(std::make_unique<Series>());
  Series& series = *family.series.back();
  series.labels = labels;
  return series;
}

Counter& MetricRegistry::AddCounter(absl::string_view name, absl::string_view help, const Labels& labels) {
  MutexLock lock(mutex_);
  Series& series = Get(name, help, "counter", labels);
  if (series.value) Die(absl::StrCat(name, " is a callback"));
  if (series.counter == nullptr) series.counter = std::make_unique<Counter>();
  return *series.counter;
}

Gauge& MetricRegistry::AddGauge(absl::string_view name, absl::string_view help, const Labels& labels) {
  MutexLock lock(mutex_);
  Series& series = Get(name, help, "gauge", labels);
  if (series.value) Die(absl::StrCat(name, " is a callback"));
  if (series.gauge == nullptr) series.gauge = std::make_unique<Gauge>();
  return *series.gauge;
}

Histogram& MetricRegistry::AddHistogram(absl::string_view name, absl::string_view help,
                                        const std::vector<double>& bounds, const Labels& labels) {
  if (bounds.empty() || !std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<double>())) {
    Die(absl::StrCat(name, ": bounds must rise"));
  }
  MutexLock lock(mutex_);
  Series& series = Get(name, help, "histogram", labels);
  if (series.histogram == nullptr) series.histogram = std::make_unique<Histogram>(bounds);
  if (series.histogram->bounds() != bounds) Die(absl::StrCat(name, " has other bounds"));
  return *series.histogram;
}

void MetricRegistry::AddCallbackGauge(absl::string_view name, absl::string_view help, const Labels& labels,
                                      std::function<double()> value) {
  MutexLock lock(mutex_);
  Series& series = Get(name, help, "gauge", labels);
  if (series.gauge != nullptr || series.value) Die(absl::StrCat(name, " is there already"));
  series.value = std::move(value);
}

void MetricRegistry::AddCallbackGauges(absl::string_view name, absl::string_view help,
                                       std::function<std::vector<std::pair<Labels, double>>()> values) {
  MutexLock lock(mutex_);
  Family& family = GetFamily(name, help, "gauge");
  if (!family.series.empty()) Die(absl::StrCat(name, " is there already"));
  family.values = std::move(values);
}

void MetricRegistry::AddCallbackCounter(absl::string_view name, absl::string_view help, const Labels& labels,
                                        std::function<double()> value) {
  MutexLock lock(mutex_);
  Series& series = Get(name, help, "counter", labels);
  if (series.counter != nullptr || series.value) Die(absl::StrCat(name, " is there already"));
  series.value = std::move(value);
}

void MetricRegistry::AddProcessMetrics() {
  AddCallbackGauge("process_resident_memory_bytes", "Resident memory.", {}, ResidentBytes);
  AddCallbackCounter("process_cpu_seconds_total", "User and system CPU time.", {}, CpuSeconds);
  AddCallbackGauge("process_open_fds", "Open file descriptors.", {}, OpenFiles);
  AddGauge("process_start_time_seconds", "When metrics began, in Unix time.")
      .Set(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

std::string MetricRegistry::Exposition() const {
  MutexLock lock(mutex_);
  std::string out;
  for (const auto& family : families_) {
    const std::string& name = family->name;
    absl::StrAppend(&out, "# HELP ", name, " ",
                    absl::StrReplaceAll(ValidUtf8(family->help), {{"\\", "\\\\"}, {"\n", "\\n"}}),
                    "\n# TYPE ", name, " ", family->type, "\n");
    if (family->values) {
      for (const auto& [labels, value] : family->values()) {
        absl::StrAppend(&out, name, LabelText(labels), " ", Number(value), "\n");
      }
    }
    for (const auto& series : family->series) {
      const std::string labels = LabelText(series->labels);
      if (series->value) {
        absl::StrAppend(&out, name, labels, " ", Number(series->value()), "\n");
      } else if (series->counter != nullptr) {
        absl::StrAppend(&out, name, labels, " ", series->counter->value(), "\n");
      } else if (series->gauge != nullptr) {
        absl::StrAppend(&out, name, labels, " ", Number(series->gauge->value()), "\n");
      } else {
        const auto& bounds = series->histogram->bounds();
        const auto counts = series->histogram->counts();
        uint64_t total = 0;
        for (size_t i = 0; i < counts.size(); ++i) {
          total += counts[i];
          const std::string le = i < bounds.size() ? Number(bounds[i]) : "+Inf";
          absl::StrAppend(&out, name, "_bucket", LabelText(With(series->labels, "le", le)), " ", total, "\n");
        }
        absl::StrAppend(&out, name, "_sum", labels, " ", Number(series->histogram->sum()), "\n");
        absl::StrAppend(&out, name, "_count", labels, " ", total, "\n");
      }
    }
  }
  return out;
}

}  // namespace weir
