#include "worker/choose_devices.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

// A Unix socket is on this host, whatever its path.
std::string HostOf(const std::string& address) {
  const auto parsed = ParseAddress(address);
  return parsed.ok() ? parsed->host : "";
}

}  // namespace

uint32_t LocalRank(const std::optional<TaskEnvironment>& environment) {
  if (!environment.has_value()) return 0;
  const ClusterSpec& cluster = environment->cluster;
  const std::optional<uint32_t> rank = cluster.WorkerRank(environment->task);
  if (cluster.IsDynamic()) return rank.value_or(0);
  const std::string host = HostOf(environment->address);
  uint32_t before = 0;
  for (const auto& [type, addresses] : cluster.jobs()) {
    for (const auto& [index, address] : addresses) {
      const std::optional<uint32_t> other = cluster.WorkerRank({type, index});
      if (other.has_value() && (!rank.has_value() || *other < *rank) && HostOf(address) == host) ++before;
    }
  }
  return before;
}

absl::StatusOr<ChosenDevices> ChooseDevices(absl::string_view flag, Precision precision, uint32_t local_rank,
                                            absl::FunctionRef<absl::StatusOr<std::vector<int>>()> usable) {
  WEIR_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseDevices(flag));
  if (names != std::vector<std::string>{"auto"}) return ChosenDevices{std::move(names), ""};
  const absl::StatusOr<std::vector<int>> devices = usable();
  if (devices.ok()) {
    const int device = (*devices)[local_rank % devices->size()];
    return ChosenDevices{{absl::StrCat("cuda:", device)},
                         absl::StrCat(devices->size(), devices->size() == 1 ? " device" : " devices",
                                      " to use, this is worker ", local_rank, " of the host")};
  }
  if (precision != Precision::kFloat32) {
    return absl::FailedPreconditionError(
        absl::StrCat("compute.precision is ", PrecisionName(precision),
                     ", which needs a GPU, and --device=auto finds none: ", devices.status().message(),
                     "; take compute.precision out to train on the CPU"));
  }
  return ChosenDevices{{"cpu"}, absl::StrCat("no GPU: ", devices.status().message())};
}

}  // namespace weir
