#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/config/cluster_spec.h"
#include "worker/compute/compute_backend.h"

namespace weir {

// Which of a host's devices is a worker's own, counted from 0: the workers (chief first, evaluators last)
// before it in the cluster spec whose address has the same host. Where the spec is dynamic, so that it says
// nothing of the others, the rank among all workers; 0 without a cluster.
uint32_t LocalRank(const std::optional<TaskEnvironment>& environment);

struct ChosenDevices {
  std::vector<std::string> names;  // "cpu" or "cuda:N", one a replica
  std::string reason;              // of auto's choice, for the log
};

// `flag` is what --device says. auto takes the (local_rank modulo their number)-th device that `usable`
// lists, and the CPU where it fails; `usable` (cuda::UsableDevices) is not asked otherwise. InvalidArgument:
// the flag is wrong; FailedPrecondition: the precision needs a GPU and auto finds none.
absl::StatusOr<ChosenDevices> ChooseDevices(absl::string_view flag, Precision precision, uint32_t local_rank,
                                            absl::FunctionRef<absl::StatusOr<std::vector<int>>()> usable);

}  // namespace weir
