// `weir config check`, `show` and `fields`: look at a job config without running it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_plan.h"
#include "cli/installation/installation.h"
#include "cli/report/config_text.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/config/dns_cluster.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

// proto/job_config.proto, for people: all fields of a config, with types, defaults, limits and meanings.
constexpr char kFields[] =
#include "cli/commands/job_config_fields.inc"
    ;

// Shows what is wrong with a config, one problem a line.
int RefuseConfig(absl::string_view problems) {
  std::fprintf(stderr, "%s\n", std::string(problems).c_str());
  return kExitConfig;
}

// Checks the memory that a server of the job needs, if the data on this machine tell the model's size.
absl::Status CheckMemory(const LocalCluster::Options& options, const UpConfig& up) {
  if (!up.config.has_model()) return absl::OkStatus();
  const absl::StatusOr<JobSizes> sizes = FindJobSizes(options.config, up.overrides);
  // `worker` will report what is wrong with the data.
  if (!sizes.ok() || !sizes->parameters.has_value()) return absl::OkStatus();
  const auto servers = static_cast<uint32_t>(options.ps);
  return CheckServerMemory(up.config, up.config.cluster().workers(), *sizes->parameters,
                           ServersWithPart(up.config, *sizes->parameters, servers), LookAtMemory().most());
}

// Checks what the config alone does not show: checkpoints, the server's part, memory.
absl::Status CheckStart(const LocalCluster::Options& options, const UpConfig& up, bool with_worker) {
  WEIR_RETURN_IF_ERROR(FindStart(up.config.checkpoint(), /*resume=*/false).status());
  if (const auto ps_server = FindProgram("ps_server", "ps_server"); ps_server.ok()) {
    WEIR_ASSIGN_OR_RETURN(const CommandResult result,
                          RunOnConfig(*ps_server, "--check", options.config, up.overrides));
    if (!result.exit.ok()) return absl::InvalidArgumentError(absl::StripAsciiWhitespace(result.output));
  }
  return with_worker ? CheckMemory(options, up) : absl::OkStatus();
}

// Checks whether `weir up` could start this job on this machine. `ps_server` checks a part; `worker`
// continues in the place of this process. The checks of a program that is not there are left out.
int RunConfigCheck(const UpOptions& options) {
  const absl::StatusOr<UpConfig> up = ConfigOfUp(options);
  if (!up.ok()) return RefuseConfig(up.status().message());
  const std::string& path = options.cluster.config;
  const absl::StatusOr<std::string> worker = FindProgram("worker", "worker");
  if (const absl::Status start = CheckStart(options.cluster, *up, worker.ok()); !start.ok()) {
    return RefuseConfig(absl::StrCat(path, ": ", start.message()));
  }
  if (worker.ok()) {
    std::vector<std::string> args = ConfigFlags(path, up->overrides);
    args.push_back("--check");
    return BecomeProgram("worker", "worker", args, "");
  }
  return Print(absl::StrCat(path, ": ok (job \"", up->config.name(), "\", ", up->config.model().layers_size(),
                            " layers)\n  not checked: the data, and whether the model fits it (",
                            worker.status().message(), ")\n"));
}

// Prints the effective config with its defaults, as JSON that can be used as a config itself.
int RunConfigShow(const UpOptions& options) {
  const LocalCluster::Options& cluster = options.cluster;
  const absl::StatusOr<v1::JobConfig> config = LoadJobConfig(cluster.config, cluster.overrides);
  if (!config.ok()) return RefuseConfig(config.status().message());
  Print(ToJson(*config, /*with_defaults=*/true));
  // Not on stdout, which is a config: these lines in it would be wrong after the first change.
  std::fprintf(stderr, "%s\n", DescribeServerMemory(*config).c_str());
  const absl::StatusOr<JobSizes> sizes = FindJobSizes(cluster.config, cluster.overrides);
  if (sizes.ok() && sizes->parameters.has_value()) {
    const int workers = options.workers.value_or(static_cast<int>(config->cluster().workers()));
    const std::string bytes =
        DescribeServerBytes(*config, static_cast<uint32_t>(cluster.ps),
                            static_cast<uint32_t>(std::max(workers, 1)), *sizes->parameters);
    std::fprintf(stderr, "  %s\n", bytes.c_str());
  } else {
    std::fprintf(stderr, "  in bytes: not known here (%s)\n",
                 (sizes.ok() ? sizes->unknown : std::string(sizes.status().message())).c_str());
  }
  std::fprintf(stderr, "%s\n", DescribeCheckpoints(*config).c_str());
  return kExitOk;
}

constexpr const char* kConfigExamples = R"(Examples:
  weir config check configs/digits.json
  weir config show configs/digits.json --set train.epochs=3
  weir config fields)";

}  // namespace

void AddConfigCommands(Commands& commands) {
  const auto options = std::make_shared<UpOptions>();
  CLI::App* group = commands.AddGroup("config", "Looks at a job config without running it", kConfigExamples);
  CLI::App* check = group->add_subcommand("check", "Says what is wrong with it");
  CLI::App* show = group->add_subcommand("show", "Prints it with all defaults");
  CLI::App* fields = group->add_subcommand(
      "fields", "Prints all fields that a config may have, with types, defaults, limits and meanings");
  for (CLI::App* command : {check, show}) {
    AddConfigFile(command, &options->cluster.config);
    AddOverrides(command, &options->cluster.overrides);
    AddCount(command, "--ps", &options->cluster.ps, kMostTasks, "Servers, for a server's memory");
    command
        ->add_option("--workers", options->workers, "Workers (default: the config's cluster.workers, or 1)")
        ->check(CLI::Range(1, kMostTasks));
  }
  commands.OnRun(check, [options] { return RunConfigCheck(*options); });
  commands.OnRun(show, [options] { return RunConfigShow(*options); });
  commands.OnRun(fields, [] { return Print(kFields); });
}

}  // namespace weir
