#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ps_server/optimizer/kernel_table.h"

namespace weir {

namespace v1 {
class ServerConfig;
}

// The levels in which the kernels are built, from narrow to wide. All give the same bits; the choice is one
// of speed only.
enum class KernelLevel { kPlain, kAvx2, kAvx512 };

// Whether this CPU and its operating system can run a level.
bool HasKernels(KernelLevel level);

// The levels that can run here, from narrow to wide; the first is kPlain.
std::vector<KernelLevel> AvailableKernelLevels();

// FailedPrecondition if this CPU cannot run the level; the message names those that it can. Tables live for
// ever.
absl::StatusOr<const Kernels*> KernelsFor(KernelLevel level);

// The widest that can run here.
const Kernels& BestKernels();

// What `server.kernels` asks for. Errors as KernelsFor, naming the field.
absl::StatusOr<const Kernels*> KernelsFromConfig(const v1::ServerConfig& config);

}  // namespace weir
