#include "cli/report/host_report.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/report/format.h"
#include "common/base/host.h"
#include "common/cuda/cuda_device.h"
#include "common/system/unique_fd.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

// Returns "" if the file is not there: files of /proc and /sys come and go with the kernel's configuration.
std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

// The word in brackets of "always [madvise] never".
std::string Chosen(const std::string& text) {
  const size_t begin = text.find('['), end = text.find(']');
  return begin < end && end != std::string::npos ? text.substr(begin + 1, end - begin - 1) : text;
}

// The value of the first "key: value" or "key   : value" line with this key.
std::string ValueOf(const std::string& text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == key) {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return "";
}

// The levels that Weir's kernels are compiled for.
std::string CpuKernels() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return "avx512";
  }
  return __builtin_cpu_supports("avx2") ? "avx2" : "plain";
}

void LookAtGpus(HostReport* report) {
  if (const int version = cuda::DriverVersion()) report->cuda_driver = cuda::VersionString(version);
  if (const int version = cuda::RuntimeVersion()) report->cuda_runtime = cuda::VersionString(version);
  const auto blas = cuda::FindBlas();
  (blas.ok() ? report->cublas : report->no_cublas) = blas.ok() ? *blas : std::string(blas.status().message());
  const auto found = cuda::Probe();
  if (!found.ok()) {
    report->no_devices = std::string(found.status().message());
    return;
  }
  for (const cuda::Device& device : found->devices) {
    HostReport::Device out;
    out.name = absl::StrCat("cuda:", device.index);
    out.model = device.name;
    out.capability = absl::StrCat(device.major, ".", device.minor);
    out.memory_bytes = device.memory_bytes;
    out.multiprocessors = device.multiprocessors;
    out.unused = device.usable.ok() ? report->no_cublas : std::string(device.usable.message());
    report->devices.push_back(std::move(out));
  }
}

using Json = nlohmann::ordered_json;

std::string OrUnknown(const std::string& text) { return text.empty() ? "not known" : text; }

void Line(std::string* out, absl::string_view label, absl::string_view value) {
  absl::StrAppendFormat(out, "%-20s%s\n", label, value);
}

std::string Memory(const HostReport& report) {
  std::string text =
      absl::StrCat(FormatBytes(report.memory_bytes), ", ", FormatBytes(report.available_bytes), " available");
  if (report.memory_limit_bytes > 0) {
    absl::StrAppend(&text, "; this container may have ", FormatBytes(report.memory_limit_bytes));
  }
  return text;
}

Json OrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

HostReport LookAtHost(const std::string& root) {
  HostReport report;
  utsname name;
  if (uname(&name) == 0) report.kernel = absl::StrCat(name.sysname, " ", name.release);
  report.cpu = ValueOf(Read(root + "/proc/cpuinfo"), "model name");
  report.cpu_kernels = CpuKernels();
  report.cores = UsableCpus(root);
  const HostMemory memory = LookAtMemory(root);
  report.memory_bytes = memory.total;
  report.available_bytes = memory.available;
  report.memory_limit_bytes = memory.limit;
  report.huge_pages = Chosen(Read(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  report.shared_huge_pages = Chosen(Read(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  const UniqueFd shared(memfd_create("weir", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (shared.get() < 0) report.no_shared_memory = absl::StrCat("memfd_create: ", strerror(errno));
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
    report.open_files = files.rlim_cur;
  report.congestion_control = Read(root + "/proc/sys/net/ipv4/tcp_congestion_control");
  report.congestion_choices =
      absl::StrSplit(Read(root + (geteuid() == 0 ? "/proc/sys/net/ipv4/tcp_available_congestion_control"
                                                 : "/proc/sys/net/ipv4/tcp_allowed_congestion_control")),
                     ' ', absl::SkipEmpty());
  LookAtGpus(&report);
  return report;
}

std::string HostReportText(const HostReport& report) {
  std::string out;
  Line(&out, "kernel", OrUnknown(report.kernel));
  Line(&out, "processor", OrUnknown(report.cpu));
  Line(&out, "cores", absl::StrCat(report.cores));
  Line(&out, "cpu kernels", report.cpu_kernels);
  Line(&out, "memory", Memory(report));
  Line(&out, "huge pages",
       absl::StrCat(OrUnknown(report.huge_pages), "; shared memory: ", OrUnknown(report.shared_huge_pages)));
  Line(&out, "shared memory",
       report.no_shared_memory.empty()
           ? "yes"
           : absl::StrCat("no (", report.no_shared_memory, "): Unix sockets instead"));
  Line(&out, "open files", report.open_files == 0 ? "no limit" : FormatCount(report.open_files));
  Line(&out, "congestion control",
       absl::StrCat(OrUnknown(report.congestion_control),
                    "; may be chosen: ", OrUnknown(absl::StrJoin(report.congestion_choices, ", "))));
  Line(&out, "cuda driver", report.cuda_driver.empty() ? "none" : report.cuda_driver);
  Line(&out, "cuda runtime", report.cuda_runtime.empty() ? "none" : report.cuda_runtime);
  Line(&out, "cublas", report.cublas.empty() ? absl::StrCat("none: ", report.no_cublas) : report.cublas);
  if (report.devices.empty()) Line(&out, "gpu", absl::StrCat("none: ", report.no_devices));
  for (const HostReport::Device& device : report.devices) {
    Line(&out, device.name,
         absl::StrCat(Printable(device.model), ", compute capability ", device.capability, ", ",
                      FormatBytes(device.memory_bytes), ", ", device.multiprocessors, " multiprocessors: ",
                      device.unused.empty() ? "used" : absl::StrCat("not used: ", device.unused)));
  }
  return out;
}

std::string HostReportJson(const HostReport& report) {
  Json devices = Json::array();
  for (const HostReport::Device& device : report.devices) {
    devices.push_back({{"name", device.name},
                       {"model", device.model},
                       {"capability", device.capability},
                       {"memory_bytes", device.memory_bytes},
                       {"multiprocessors", device.multiprocessors},
                       {"unused", OrNull(device.unused)}});
  }
  const Json json = {
      {"kernel", OrNull(report.kernel)},
      {"cpu", OrNull(report.cpu)},
      {"cpu_kernels", report.cpu_kernels},
      {"cores", report.cores},
      {"memory_bytes", report.memory_bytes},
      {"available_bytes", report.available_bytes},
      {"memory_limit_bytes", report.memory_limit_bytes == 0 ? Json() : Json(report.memory_limit_bytes)},
      {"huge_pages", OrNull(report.huge_pages)},
      {"shared_huge_pages", OrNull(report.shared_huge_pages)},
      {"no_shared_memory", OrNull(report.no_shared_memory)},
      {"open_files", report.open_files == 0 ? Json() : Json(report.open_files)},
      {"congestion_control", OrNull(report.congestion_control)},
      {"congestion_choices", report.congestion_choices},
      {"cuda_driver", OrNull(report.cuda_driver)},
      {"cuda_runtime", OrNull(report.cuda_runtime)},
      {"cublas", OrNull(report.cublas)},
      {"no_cublas", OrNull(report.no_cublas)},
      {"no_devices", OrNull(report.no_devices)},
      {"devices", devices},
  };
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
