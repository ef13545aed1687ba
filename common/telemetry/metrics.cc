#include "common/telemetry/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/json_document.h"
#include "common/telemetry/logging.h"

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
  return JsonNumber(value);
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

struct MetricRegistry::Family {
  struct Series {
    Labels labels;
    std::function<double()> value;
  };
  std::string name;
  std::string help;
  std::string type;
  std::vector<Series> series;
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

void MetricRegistry::Add(absl::string_view name, absl::string_view help, const char* type,
                         const Labels& labels, std::function<double()> value) {
  for (const auto& label : labels) {
    if (!LegalName(label.first)) Die(absl::StrCat(name, ": '", label.first, "' is no legal label"));
  }
  MutexLock lock(mutex_);
  Family& family = GetFamily(name, help, type);
  for (const auto& series : family.series) {
    if (series.labels == labels) Die(absl::StrCat(name, " is there already"));
  }
  family.series.push_back({labels, std::move(value)});
}

Gauge& MetricRegistry::AddGauge(absl::string_view name, absl::string_view help, const Labels& labels) {
  const auto gauge = std::make_shared<Gauge>();
  Add(name, help, "gauge", labels, [gauge] { return gauge->value(); });
  return *gauge;
}

void MetricRegistry::AddCallbackGauge(absl::string_view name, absl::string_view help, const Labels& labels,
                                      std::function<double()> value) {
  Add(name, help, "gauge", labels, std::move(value));
}

void MetricRegistry::AddCallbackCounter(absl::string_view name, absl::string_view help, const Labels& labels,
                                        std::function<double()> value) {
  Add(name, help, "counter", labels, std::move(value));
}

void MetricRegistry::AddCallbackGauges(absl::string_view name, absl::string_view help,
                                       std::function<std::vector<std::pair<Labels, double>>()> values) {
  MutexLock lock(mutex_);
  Family& family = GetFamily(name, help, "gauge");
  if (!family.series.empty()) Die(absl::StrCat(name, " is there already"));
  family.values = std::move(values);
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
      absl::StrAppend(&out, name, LabelText(series.labels), " ", Number(series.value()), "\n");
    }
  }
  return out;
}

}  // namespace weir
