// `weir config check`, `show`, `fields` and `schema` look at a job config without running it; `init` writes
// one.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_plan.h"
#include "cli/installation/installation.h"
#include "cli/report/config_text.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/config/dns_cluster.h"
#include "common/config/job_config.h"
#include "common/config/json_document.h"
#include "common/config/server_memory.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

// proto/job_config.proto, for people: all fields of a config, with types, defaults, limits and meanings.
constexpr char kFields[] =
#include "cli/commands/job_config_fields.inc"
    ;
// configs/job.schema.json.
constexpr char kSchema[] =
#include "cli/commands/job_config_schema.inc"
    ;

// Shows what is wrong with a config, one problem a line.
int RefuseConfig(absl::string_view problems) {
  std::fprintf(stderr, "%s\n", std::string(problems).c_str());
  return kExitConfig;
}

// Checks the memory that a server of the job needs, if the data on this machine tell the model's size.
absl::Status CheckMemory(const JobCluster::Options& options, const UpConfig& up) {
  if (!up.config.has_model()) return absl::OkStatus();
  const absl::StatusOr<JobSizes> sizes = FindJobSizes(options.config, up.overrides);
  // `worker` will report what is wrong with the data.
  if (!sizes.ok() || !sizes->parameters.has_value()) return absl::OkStatus();
  const auto servers = static_cast<uint32_t>(options.ps);
  return CheckServerMemory(up.config, up.config.cluster().workers(), *sizes->parameters,
                           ServersWithPart(up.config, *sizes->parameters, servers), LookAtMemory().most());
}

// Checks what the config alone does not show: checkpoints, the server's part, memory.
absl::Status CheckStart(const JobCluster::Options& options, const UpConfig& up, bool with_worker) {
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
  const JobCluster::Options& cluster = options.cluster;
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
  weir config init job.json --mode=bounded --optimizer=adam
  weir config schema > job.schema.json)";

// What `weir config init` writes, and where.
struct FirstJob {
  std::string path = "job.json";
  std::string mode = "sync";
  std::string optimizer = "adam";
  double learning_rate = 0.001;
  uint32_t batch_size = 32;
  double epochs = 10;
  uint32_t workers = 2;
  std::string checkpoints;
};

// The config of a program of one's own, with the comments that a first reader needs.
std::string Written(const FirstJob& job) {
  std::string consistency = R"(  // Gradients take effect on arrival, and workers read the newest weights.
  "consistency": {"mode": "async"},)";
  if (job.mode == "sync") {
    consistency =
        absl::StrCat(R"(  // A step is the mean over this many batches, however many workers share them.
  "consistency": {"mode": "sync", "parts": )",
                     job.workers, "},");
  } else if (job.mode == "bounded") {
    consistency = R"(  // No worker computes with weights that lack more than 3 steps of the slowest worker.
  "consistency": {"mode": "bounded", "staleness": 3},)";
  }
  const std::string checkpoint = job.checkpoints.empty() ? ""
                                                         : absl::StrCat(R"(
  // With checkpoints the job survives the loss of a server, and `weir up --resume=DIR` continues it.
  "checkpoint": {"directory": )",
                                                                        JsonQuote(job.checkpoints), "},");
  return absl::Substitute(R"(// A job of a program of one's own, which brings its model and its training set:
//   weir up --ps=1 --workers=$1 $0 -- python train.py
// `weir config fields` prints all that a job may say; `weir config check $0` checks this file.
{
  // Examples in one pushed gradient.
  "data": {"batch_size": $2},
  // Passes over the training set.
  "train": {"epochs": $3},
$4$5
  "optimizer": {"type": $6, "learning_rate": $7}
}
)",
                          job.path, job.workers, job.batch_size, JsonNumber(job.epochs), consistency,
                          checkpoint, JsonQuote(job.optimizer), JsonNumber(job.learning_rate));
}

// Writes a first config. Changes no file that is there, and writes none that `weir config check` would
// refuse.
int RunConfigInit(const FirstJob& job) {
  const std::string text = Written(job);
  if (const auto config = ParseJobConfig(text, job.path); !config.ok()) {
    return RefuseConfig(config.status().message());
  }
  std::FILE* file = std::fopen(job.path.c_str(), "wxe");
  bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (!written) {
    return RefuseConfig(absl::StrCat(job.path, ": cannot be written: ", std::strerror(errno),
                                     errno == EEXIST ? "; name another file, or remove this one" : ""));
  }
  return Print(text);
}

}  // namespace

void AddConfigCommands(Commands& commands) {
  const auto options = std::make_shared<UpOptions>();
  const auto first = std::make_shared<FirstJob>();
  CLI::App* group =
      commands.AddGroup("config", "Check, show or write a job config, without running it", kConfigExamples);
  CLI::App* check = group->add_subcommand("check", "Show what is wrong with a config");
  CLI::App* show = group->add_subcommand("show", "Print a config with all defaults");
  CLI::App* fields = group->add_subcommand(
      "fields", "Print all fields that a config may have, with types, defaults, limits and meanings");
  CLI::App* schema = group->add_subcommand(
      "schema", "Print a JSON Schema of configs, by which editors complete and check them");
  CLI::App* init =
      group->add_subcommand("init", "Write the config of a first job, for a program of your own");
  AddNamed(init, "FILE", &first->path, "FILE", "The file, which must not exist (default: job.json)");
  init->add_option("--mode", first->mode, "Who waits for whom")
      ->check(CLI::IsMember({"sync", "bounded", "async"}))
      ->capture_default_str();
  AddNamed(init, "--optimizer", &first->optimizer, "NAME", "The servers' optimizer (default: adam)");
  AddNamed(init, "--learning_rate", &first->learning_rate, "RATE", "Its learning rate (default: 0.001)");
  AddNamed(init, "--batch_size", &first->batch_size, "N", "Examples in one pushed gradient (default: 32)");
  AddNamed(init, "--epochs", &first->epochs, "N", "Passes over the training set (default: 10)");
  AddNamed(init, "--workers", &first->workers, "N", "Workers; in sync, the parts of a step (default: 2)");
  AddNamed(init, "--checkpoints", &first->checkpoints, "DIR",
           "A folder or s3://BUCKET/PREFIX (default: none)");
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
  commands.OnRun(schema, [] { return Print(kSchema); });
  commands.OnRun(init, [first] { return RunConfigInit(*first); });
}

}  // namespace weir
