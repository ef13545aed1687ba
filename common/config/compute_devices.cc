#include "common/config/compute_devices.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weir {
namespace {

constexpr size_t kMostReplicas = 64;

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the device '", text, "' ", why,
                   "; there are auto, cpu and cuda:N (N = 0, 1, ...), and for replicas in one worker lists "
                   "as cuda:0,cuda:1"));
}

}  // namespace

std::optional<int> CudaIndex(absl::string_view device) {
  int index = 0;
  const bool is_cuda = absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &index) &&
                       index >= 0 && index < 1024 && absl::StrCat(index) == device;
  return is_cuda ? std::optional(index) : std::nullopt;
}

bool IsForCpuOnly(v1::LayerConfig::Type type) {
  return type == v1::LayerConfig::LAYER_EMBEDDING || type == v1::LayerConfig::LAYER_CONCAT ||
         type == v1::LayerConfig::LAYER_CROSS || type == v1::LayerConfig::LAYER_FACTORIZATION_MACHINE;
}

absl::StatusOr<std::vector<std::string>> ParseDevices(absl::string_view text) {
  std::vector<std::string> devices = absl::StrSplit(text, ',');
  if (devices.size() > kMostReplicas) {
    return Refuse(text, absl::StrCat("lists ", devices.size(), " replicas, ", kMostReplicas, " is the most"));
  }
  for (const std::string& device : devices) {
    if (device == "auto") {
      if (devices.size() > 1) return Refuse(text, "has auto in a list, where it stands alone");
    } else if (device != "cpu" && !CudaIndex(device).has_value()) {
      return Refuse(text, "is not known");
    }
    if ((device == "cpu") != (devices[0] == "cpu")) {
      return Refuse(text,
                    "mixes kinds; the replicas of a worker are equal shares, so give them equal devices");
    }
  }
  return devices;
}

}  // namespace weir
