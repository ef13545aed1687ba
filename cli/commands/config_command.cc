#include "cli/commands/config_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "cli/commands/start.h"
#include "cli/config/checkpoints.h"
#include "cli/config/job_config_fields.h"
#include "cli/config/job_sizes.h"
#include "cli/config/server_memory.h"
#include "cli/local_cluster/other_program.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/program/exit_codes.h"
#include "common/system/host_memory.h"
#include "common/system/subprocess.h"

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

// What a server says of the config, before it would listen.
absl::Status AskServer(const std::string& ps_server, const std::vector<std::string>& args) {
  Subprocess::Options options;
  options.args = {ps_server};
  options.args.insert(options.args.end(), args.begin(), args.end());
  WEIR_ASSIGN_OR_RETURN(const CommandResult result, RunCommand(std::move(options), std::chrono::minutes(1)));
  if (result.exit.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StripAsciiWhitespace(result.output));
}

// The memory that a server of the job needs, if the data on this machine tell the model's size.
absl::Status CheckMemory(const UpOptions& options, const UpConfig& up) {
  if (!up.config.has_model()) return absl::OkStatus();
  const absl::StatusOr<JobSizes> sizes = FindJobSizes(options.config, up.overrides);
  // What is wrong with the data is for `worker` to say.
  if (!sizes.ok() || !sizes->parameters.has_value()) return absl::OkStatus();
  const auto servers = static_cast<uint32_t>(options.ps);
  return CheckServerMemory(up.config, up.config.cluster().workers(), *sizes->parameters,
                           ServersWithPart(up.config, *sizes->parameters, servers), LookAtMemory().most());
}

absl::Status CheckStart(const UpOptions& options, const UpConfig& up, const Programs& programs,
                        const std::vector<std::string>& args) {
  WEIR_RETURN_IF_ERROR(FindStart(up.config.checkpoint(), /*resume=*/false).status());
  if (programs.ps_server.ok()) WEIR_RETURN_IF_ERROR(AskServer(*programs.ps_server, args));
  return programs.worker.ok() ? CheckMemory(options, up) : absl::OkStatus();
}

}  // namespace

int RunConfigCheck(const UpOptions& options, const Programs& programs) {
  const absl::StatusOr<UpConfig> up = ConfigOfUp(options);
  if (!up.ok()) {
    std::fprintf(stderr, "%s\n", std::string(up.status().message()).c_str());
    return kExitConfig;
  }
  std::vector<std::string> args = {"--check", "--config=" + options.config};
  for (const std::string& override : up->overrides) args.insert(args.end(), {"--set", override});
  if (const absl::Status start = CheckStart(options, *up, programs, args); !start.ok()) {
    std::fprintf(stderr, "%s: %s\n", options.config.c_str(), std::string(start.message()).c_str());
    return kExitConfig;
  }
  if (programs.worker.ok()) return BecomeProgram("worker", "worker", args, "");
  std::printf("%s: ok (job \"%s\", %d layers)\n  not checked: the data, and whether the model fits it (%s)\n",
              options.config.c_str(), up->config.name().c_str(), up->config.model().layers_size(),
              std::string(programs.worker.status().message()).c_str());
  std::fflush(stdout);
  return kExitOk;
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
