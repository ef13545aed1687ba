#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job_config.pb.h"

namespace weir {

// N of "cuda:N". nullopt: `device` is no such name.
std::optional<int> CudaIndex(absl::string_view device);

// The value of --device as a list: {"auto"} alone, or one name for each replica of the model: "cpu" or
// "cuda:N", all of one kind. A name may come twice: two replicas on one device. InvalidArgument says what was
// seen and what is allowed.
absl::StatusOr<std::vector<std::string>> ParseDevices(absl::string_view text);

// Whether layers of this type compute in the host's memory by themselves, so that a worker with one needs the
// CPU.
bool IsForCpuOnly(v1::LayerConfig::Type type);

}  // namespace weir
