#include "cli/config/config_command.h"

#include <cstdio>

#include "cli/config/checkpoints.h"
#include "cli/config/server_memory.h"
#include "common/config/job_config.h"
#include "common/exit_codes.h"

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

int RunConfigCheck(const std::string& path, const std::vector<std::string>& overrides) {
  return WithConfig(path, overrides, [&path](const v1::JobConfig& config) {
    std::printf("%s: ok (job \"%s\", %d layers)\n", path.c_str(), config.name().c_str(),
                config.model().layers_size());
  });
}

int RunConfigShow(const std::string& path, const std::vector<std::string>& overrides) {
  return WithConfig(path, overrides, [](const v1::JobConfig& config) {
    std::fputs(ToJson(config, /*with_defaults=*/true).c_str(), stdout);
    // Not on stdout, which is a config: there it would go stale with the first change.
    std::fprintf(stderr, "%s\n%s\n", DescribeServerMemory(config).c_str(),
                 DescribeCheckpoints(config).c_str());
  });
}

}  // namespace weir
