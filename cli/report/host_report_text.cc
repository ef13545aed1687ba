#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report/format.h"
#include "cli/report/host_report.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

std::string OrUnknown(const std::string& text) { return text.empty() ? "not known" : text; }

void Line(std::string* out, absl::string_view label, absl::string_view value) {
  absl::StrAppend(out, label, std::string(label.size() < 20 ? 20 - label.size() : 1, ' '), value, "\n");
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
