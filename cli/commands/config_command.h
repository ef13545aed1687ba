#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/job_plan.h"

namespace weir {

// `weir config check FILE --set ...`: says whether `weir up` would begin with this job on this machine. For a
// valid config a line on stdout, and what was found about data and model. Both commands return the process's
// exit code: 0, or 78 (kExitConfig) with every problem on stderr, one per line. The programs check what the
// config alone does not show: `ps_server`, and then `worker`, which takes this process's place. An error in
// one of them: the program is not there, and the output says so.
struct Programs {
  absl::StatusOr<std::string> ps_server, worker;
};
int RunConfigCheck(const UpOptions& options, const Programs& programs);

// `weir config show FILE --set ...`: the effective config with its defaults, as JSON that can be used as a
// config itself; and on stderr lines about the memory that a server needs (in bytes where the data on this
// machine tell the model's size, for a job of so many servers and workers) and about checkpoints. workers:
// nullopt for the config's, or 1.
int RunConfigShow(const std::string& path, const std::vector<std::string>& overrides, uint32_t servers,
                  std::optional<uint32_t> workers);

// Prints all fields of a config, with types, defaults, limits and meanings: proto/job_config.proto.
int RunConfigFields();

}  // namespace weir
