#include "cli/config/config_command.h"

#include <algorithm>
#include <cstdio>

#include "cli/config/checkpoints.h"
#include "cli/config/job_config_fields.h"
#include "cli/config/job_sizes.h"
#include "cli/config/server_memory.h"
#include "cli/local_cluster/other_program.h"
#include "common/config/job_config.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// Runs `print` on the config, or shows what is wrong with it.
template <typename Print>
int WithConfig(const std::string& path, const std::vector<std::string>& overrides, Print print) {
  const absl::StatusOr<v1::JobConfig> config = LoadJobConfig(path, overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitConfig;
  }
  print(*config);
  std::fflush(stdout);
  return kExitOk;
}

}  // namespace

int RunConfigCheck(const std::string& path, const std::vector<std::string>& overrides,
                   const absl::StatusOr<std::string>& worker) {
  const int checked = WithConfig(path, overrides, [&](const v1::JobConfig& config) {
    if (worker.ok()) return;
    std::printf(
        "%s: ok (job \"%s\", %d layers)\n  not checked: the data, and whether the model fits it (%s)\n",
        path.c_str(), config.name().c_str(), config.model().layers_size(),
        std::string(worker.status().message()).c_str());
  });
  if (checked != kExitOk || !worker.ok()) return checked;
  // The program that will read the data knows what is wrong with it.
  std::vector<std::string> args = {"--check", "--config=" + path};
  for (const std::string& override : overrides) args.insert(args.end(), {"--set", override});
  return BecomeProgram("worker", "worker", args, "");
}

int RunConfigFields() {
  std::fputs(kJobConfigFields, stdout);
  return kExitOk;
}

int RunConfigShow(const std::string& path, const std::vector<std::string>& overrides, uint32_t servers,
                  std::optional<uint32_t> workers) {
  return WithConfig(path, overrides, [&](const v1::JobConfig& config) {
    std::fputs(ToJson(config, /*with_defaults=*/true).c_str(), stdout);
    // Not on stdout, because that is a config, in which these lines would go stale with the first change.
    std::fprintf(stderr, "%s\n", DescribeServerMemory(config).c_str());
    const absl::StatusOr<JobSizes> sizes = FindJobSizes(path, overrides);
    if (sizes.ok() && sizes->parameters.has_value()) {
      const uint32_t count = workers.value_or(std::max(config.cluster().workers(), 1u));
      std::fprintf(stderr, "  %s\n", DescribeServerBytes(config, servers, count, *sizes->parameters).c_str());
    } else {
      std::fprintf(stderr, "  in bytes: not known here (%s)\n",
                   (sizes.ok() ? sizes->unknown : std::string(sizes.status().message())).c_str());
    }
    std::fprintf(stderr, "%s\n", DescribeCheckpoints(config).c_str());
  });
}

}  // namespace weir
