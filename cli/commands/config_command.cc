#include "cli/commands/config_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_plan.h"
#include "cli/config/checkpoints.h"
#include "cli/config/job_config_fields.h"
#include "cli/config/job_sizes.h"
#include "cli/config/server_memory.h"
#include "cli/local_cluster/installation.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/config/dns_cluster.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/program/exit_codes.h"
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

// Has `ps_server` check the config; the server does not listen.
absl::Status AskServer(const std::string& ps_server, const std::vector<std::string>& args) {
  Subprocess::Options options;
  options.args = {ps_server};
  options.args.insert(options.args.end(), args.begin(), args.end());
  WEIR_ASSIGN_OR_RETURN(const CommandResult result, RunCommand(std::move(options), std::chrono::minutes(1)));
  if (result.exit.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StripAsciiWhitespace(result.output));
}

// Checks the memory that a server of the job needs, if the data on this machine tell the model's size.
absl::Status CheckMemory(const UpOptions& options, const UpConfig& up) {
  if (!up.config.has_model()) return absl::OkStatus();
  const absl::StatusOr<JobSizes> sizes = FindJobSizes(options.config, up.overrides);
  // `worker` will report what is wrong with the data.
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
    // Not on stdout, which is a config: these lines in it would be wrong after the first change.
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

constexpr const char* kConfigExamples = R"(Examples:
  weir config check configs/digits.json
  weir config show configs/digits.json --set train.epochs=3
  weir config fields)";

void AddConfigCommands(Commands& commands) {
  const auto options = std::make_shared<UpOptions>();
  CLI::App* group = commands.AddGroup("config", "Looks at a job config without running it", kConfigExamples);
  CLI::App* check = group->add_subcommand("check", "Says what is wrong with it");
  CLI::App* show = group->add_subcommand("show", "Prints it with all defaults");
  CLI::App* fields = group->add_subcommand(
      "fields", "Prints all fields that a config may have, with types, defaults, limits and meanings");
  for (CLI::App* command : {check, show}) {
    AddConfigFile(command, &options->config);
    AddOverrides(command, &options->overrides);
    command->add_option("--ps", options->ps, "Servers, for a server's memory")
        ->check(CLI::Range(1, kMostTasks))
        ->capture_default_str();
    command
        ->add_option("--workers", options->workers, "Workers (default: the config's cluster.workers, or 1)")
        ->check(CLI::Range(1, kMostTasks));
  }
  commands.OnRun(check, [options] {
    return RunConfigCheck(*options, {FindProgram("ps_server", "ps_server"), FindProgram("worker", "worker")});
  });
  commands.OnRun(show, [options] {
    std::optional<uint32_t> workers;
    if (options->workers.has_value()) workers = static_cast<uint32_t>(*options->workers);
    return RunConfigShow(options->config, options->overrides, static_cast<uint32_t>(options->ps), workers);
  });
  commands.OnRun(fields, RunConfigFields);
}

}  // namespace weir
