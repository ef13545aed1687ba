#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/optimizer/kernel_table.h"

namespace weir {

namespace v1 {
class ServerConfig;
}

// The levels for which the kernels are built, from narrow to wide. All give the same bits; they differ only
// in speed.
enum class KernelLevel { kPlain, kAvx2, kAvx512 };

// Whether this CPU and its operating system can run a level.
bool HasKernels(KernelLevel level);

// The levels that this CPU can run, from narrow to wide; the first is kPlain.
std::vector<KernelLevel> AvailableKernelLevels();

// FailedPrecondition: this CPU cannot run the level; the message names the levels that it can run. Tables are
// never destroyed.
absl::StatusOr<const Kernels*> KernelsFor(KernelLevel level);

// The widest level that this CPU can run.
const Kernels& BestKernels();

// The table for `server.kernels`. Errors as KernelsFor, with the name of the field.
absl::StatusOr<const Kernels*> KernelsFromConfig(const v1::ServerConfig& config);

}  // namespace weir
