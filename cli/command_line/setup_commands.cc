#include "cli/command_line/setup_commands.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/certs/certs_command.h"
#include "cli/command_line/shared_options.h"
#include "cli/commands/config_command.h"
#include "cli/commands/doctor.h"
#include "cli/commands/job_plan.h"
#include "cli/commands/manifest_command.h"
#include "cli/data/data_command.h"
#include "cli/local_cluster/installation.h"
#include "cli/local_cluster/other_program.h"
#include "common/config/dns_cluster.h"
#include "common/model/model_spec.h"

namespace weir {

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

constexpr const char* kCertsExamples = R"(Examples:
  weir certs init certs --spec=configs/cluster_2ps_2workers.json
  weir certs check certs/worker-0.pem)";

void AddCertsCommands(Commands& commands) {
  CLI::App* group =
      commands.AddGroup("certs", "Makes certificates for TLS, and says what one allows", kCertsExamples);

  const auto options = std::make_shared<CertsInitOptions>();
  CLI::App* init = group->add_subcommand(
      "init",
      "Makes a development CA, and certificates and keys for a cluster's tasks, a reader and an admin");
  init->add_option("directory", options->directory, "A new folder for them")->type_name("DIR")->required();
  init->add_option("--spec", options->spec,
                   "Cluster spec or a TF_CONFIG, or dns:ps=NAME:COUNT,worker=NAME:COUNT")
      ->type_name("FILE")
      ->required();
  init->add_option("--job", options->job, "The job's name in the certificates")
      ->type_name("NAME")
      ->capture_default_str();
  init->add_option("--days", options->days, "For how long they are valid")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();
  commands.OnRun(init, [options] { return RunCertsInit(*options); });

  const auto certificate = std::make_shared<std::string>();
  CLI::App* check =
      group->add_subcommand("check", "Says whose certificate it is, what it allows, and when it ends");
  check->add_option("certificate", *certificate, "The certificate (PEM)")->type_name("FILE")->required();
  commands.OnRun(check, [certificate] { return RunCertsCheck(*certificate); });
}

constexpr const char* kManifestExamples = R"(Examples:
  weir manifest job.json --ps=4 --workers=16
  weir manifest job.json --ps=4 --workers=16 --format=tfjob --evaluator --namespace=training --out=my-job
  weir manifest job.json --workers=8 --gpu --image=registry.example.com/weir:0.1.0 --gpu_image=registry.example.com/weir-gpu:0.1.0
  weir manifest configs/digits.json --workers=4 --set checkpoint.directory=/var/lib/weir/checkpoints

The folder holds all that `kubectl apply -k` needs. Paths in the config are those of pods: data files lie in one folder, where pods mount the claim weir-data, and checkpoint.directory lies below /var/lib/weir, or is s3://BUCKET/PREFIX. More: docs/deploy.md)";

void AddManifestCommand(Commands& commands) {
  const auto options = std::make_shared<ManifestOptions>();
  CLI::App* command =
      commands.Add("manifest", "Writes the Kubernetes manifests of a job into a folder", kManifestExamples);
  AddConfigFile(command, &options->config);
  command->add_option("--ps", options->ps, "Servers")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  command->add_option("--workers", options->workers, "Workers")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  command->add_flag("--evaluator", options->evaluator,
                    "Adds a task that evaluates the test set every so often");
  command->add_flag("--gpu", options->gpu, "Each worker computes on an NVIDIA GPU");
  command->add_flag("--tls", options->tls,
                    "All connections of the job have mutual TLS, with certificates of weir certs init");
  command->add_option("--format", options->format, "What to write")
      ->check(CLI::IsMember({"kustomize", "jobset", "tfjob"}))
      ->capture_default_str();
  command->add_option("--out", options->out, "The folder, new or empty")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--force", options->force, "Writes over the files of a folder that is not empty");
  command->add_option("--namespace", options->name_space, "Where the job runs (default: kubectl's)")
      ->check(CheckNamespace)
      ->type_name("NAME");
  command->add_option("--image", options->image, "Of all tasks (default: weir:VERSION)")
      ->check(CheckImage)
      ->type_name("NAME:TAG");
  command->add_option("--gpu_image", options->gpu_image, "Of workers with --gpu (default: weir-gpu:VERSION)")
      ->check(CheckImage)
      ->type_name("NAME:TAG");
  command
      ->add_option("--parameters", options->parameters,
                   "Of the model, where the data are not on this machine")
      ->check(CLI::Range(int64_t{1}, kMaxElements));
  command
      ->add_option("--worker_memory_mib", options->worker_mib,
                   "MiB for each worker, instead of what follows from the data on this machine")
      ->check(CLI::Range(1, 1 << 30));
  AddOverrides(command, &options->overrides);
  commands.OnRun(command, [options] { return RunManifest(*options); });
}

constexpr const char* kDataExamples = R"(Examples:
  weir data clicks clicks
  weir data clicks clicks --rows=1000000 --users=100000 --items=20000 --seed=7)";

void AddDataCommands(Commands& commands) {
  CLI::App* group = commands.AddGroup("data", "Makes data to train on", kDataExamples);
  const auto options = std::make_shared<DataClicksOptions>();
  CLI::App* command = group->add_subcommand(
      "clicks", "Writes a synthetic click log, and says which log loss and AUC a model can reach on it");
  command->add_option("directory", options->directory, "The folder for train.csv and test.csv")
      ->type_name("DIR")
      ->required();
  const auto add_count = [&](const char* flag, auto* count, const char* what, uint64_t most) {
    command->add_option(flag, *count, what)->check(CLI::Range(uint64_t{1}, most))->capture_default_str();
  };
  constexpr uint64_t kMostRows = 100000000, kMostKeys = 10000000;
  add_count("--rows", &options->rows, "Rows of train.csv", kMostRows);
  add_count("--test_rows", &options->test_rows, "Rows of test.csv, which follow those", kMostRows);
  command->add_option("--seed", options->log.seed, "Another seed makes another truth and other rows")
      ->capture_default_str();
  add_count("--users", &options->log.users, "Users", kMostKeys);
  add_count("--items", &options->log.items, "Items", kMostKeys);
  add_count("--tags", &options->log.tags, "Tags; a row has up to 4", kMostKeys);
  command->add_option("--exponent", options->log.exponent, "Of Zipf's law for all keys")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  commands.OnRun(command, [options] { return RunDataClicks(*options); });
}

constexpr const char* kBenchExamples = R"(Examples:
  weir bench wire
  weir bench wire --sizes=1KB,64MB,1GB --layouts=1x1,2x4 --optimizers=sgd,momentum,adam --json=wire.json
All flags: docs/cli.md
)";

void AddBenchCommand(Commands& commands) {
  CLI::App* command =
      commands.Add("bench", "Measures how fast weights and gradients move on these machines", kBenchExamples);
  // The command's words are weir_bench's, --help included.
  command->prefix_command();
  command->set_help_flag();
  commands.OnRun(command, [command] {
    return BecomeProgram("bench", "weir_bench", command->remaining(), command->help());
  });
}

constexpr const char* kDoctorExamples = R"(Examples:
  weir doctor
  weir doctor --json)";

void AddDoctorCommand(Commands& commands) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = commands.Add(
      "doctor", "Says what Weir finds on this machine: processor, memory, network, GPUs", kDoctorExamples);
  command->add_flag("--json", *json, "Prints JSON");
  commands.OnRun(command, [json] { return RunDoctor(*json); });
}

}  // namespace weir
