#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/job_plan.h"

namespace weir {

// `weir config check FILE --set ...`: checks whether `weir up` could start this job on this machine. If the
// config is valid, prints a line about it, and about data and model, to stdout. Both commands return the
// process's exit code: 0, or 78 (kExitConfig) with every problem on stderr, one per line. `ps_server` checks
// first what the config alone does not show; `worker` continues in the place of this process. An error in
// `programs` means that the program is not there; then its checks are left out.
struct Programs {
  absl::StatusOr<std::string> ps_server, worker;
};
int RunConfigCheck(const UpOptions& options, const Programs& programs);

// `weir config show FILE --set ...`: prints the effective config with its defaults, as JSON that can be used
// as a config itself. Prints to stderr lines about the memory that a server needs, and about checkpoints. If
// the data on this machine tell the model's size, the memory is also in bytes, for a job with this number of
// servers and workers. `workers`: nullopt for the config's number, or 1.
int RunConfigShow(const std::string& path, const std::vector<std::string>& overrides, uint32_t servers,
                  std::optional<uint32_t> workers);

// Prints proto/job_config.proto: all fields of a config, with types, defaults, limits and meanings.
int RunConfigFields();

}  // namespace weir
