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

// The worker's number on its host, counted from 0: how many workers (chief first, evaluators last) with the
// same host come before it in the cluster spec. If the spec is dynamic, and says nothing about other workers,
// the rank among all workers; 0 without a cluster.
uint32_t LocalRank(const std::optional<TaskEnvironment>& environment);

struct ChosenDevices {
  std::vector<std::string> names;  // "cpu" or "cuda:N", one per replica
  std::string reason;              // why auto chose it, for the log
};

// `flag` is the value of --device. auto takes the (local_rank modulo their number)-th device that `usable`
// lists, and the CPU if `usable` fails. Otherwise `usable` (cuda::UsableDevices) is not called.
// InvalidArgument: the flag is wrong. FailedPrecondition: the precision needs a GPU and auto finds none.
absl::StatusOr<ChosenDevices> ChooseDevices(absl::string_view flag, Precision precision, uint32_t local_rank,
                                            absl::FunctionRef<absl::StatusOr<std::vector<int>>()> usable);

}  // namespace weir
