#include "cli/config/config_command.h"

#include <cstdio>

#include "cli/config/checkpoints.h"
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

int RunConfigShow(const std::string& path, const std::vector<std::string>& overrides) {
  return WithConfig(path, overrides, [](const v1::JobConfig& config) {
    std::fputs(ToJson(config, /*with_defaults=*/true).c_str(), stdout);
    // Not on stdout, because that is a config, in which these lines would go stale with the first change.
    std::fprintf(stderr, "%s\n%s\n", DescribeServerMemory(config).c_str(),
                 DescribeCheckpoints(config).c_str());
  });
}

}  // namespace weir
