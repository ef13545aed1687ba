#pragma once

#include <vector>

#include "proto/coordinator.pb.h"

namespace weir {

// The tasks of a running job of which ps:0 has heard nothing for kSilentSeconds: they stand still, or are cut
// off. Their last reports are old. Servers come first. They belong to `status`.
std::vector<const v1::TaskStatus*> SilentTasks(const v1::ClusterStatus& status);

}  // namespace weir
