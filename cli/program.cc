#include "cli/program.h"

// The command line of `weir`. All of CLI11 is here.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/certs/certs_command.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/commands/command_reference.h"
#include "cli/commands/demo.h"
#include "cli/commands/doctor.h"
#include "cli/commands/import_command.h"
#include "cli/commands/manifest_command.h"
#include "cli/commands/run.h"
#include "cli/commands/status_command.h"
#include "cli/commands/table_command.h"
#include "cli/commands/up.h"
#include "cli/config/config_command.h"
#include "cli/data/data_command.h"
#include "cli/local_cluster/installation.h"
#include "cli/local_cluster/other_program.h"
#include "common/config/compute_devices.h"
#include "common/config/dns_cluster.h"
#include "common/model/model_spec.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"
#include "common/program/version.h"
#include "common/rpc/tls_flags.h"

namespace weir {
namespace {

constexpr const char* kExamples = R"(Examples:
  weir demo
  weir up --ps=2 --workers=4 configs/digits.json
  weir up --ps=2 --workers=4 configs/digits.json --set 'consistency={"mode":"async"}' --summary=out.json
  weir run --config=job.json --cluster=dns:ps=weir-ps:2,worker=weir-worker:4 --task=pod
  weir status --address=127.0.0.1:2222
  weir config show configs/digits.json --set optimizer.learning_rate=0.05
  weir checkpoint verify runs/digits
  weir manifest job.json --ps=4 --workers=16
  weir bench wire

Exit codes: 0 done; 64 bad command line; 70 internal fault, or training that cannot go on; 74 a disk is full; 78 bad config; 130 Ctrl-C; 138 a task was lost, try again; 143 SIGTERM.
`weir COMMAND --help` says more.)";

constexpr const char* kUpExamples = R"(Examples:
  weir up --ps=2 --workers=4 configs/digits.json
  weir up --ps=2 --workers=2 configs/fashion_mlp.json --seed=7 --summary=out.json
  weir up --workers=4 configs/digits.json --set 'consistency={"mode":"bounded","staleness":3}' --verbose
  weir up --ps=2 --workers=4 job.json -- python train.py ARGS

What follows -- is a program that each worker runs instead of `worker`, with its arguments.)";

constexpr const char* kRunExamples = R"(Examples:
  weir run --config=job.json --cluster=dns:ps=weir-ps:2,worker=weir-worker:4 --task=pod
  weir run --config=job.json --cluster=cluster.json --task=ps:0 --http_port=8080
  TF_CONFIG='{"cluster": ...}' weir run --config=job.json

The task is, in this order, that of --task, of the file --cluster, or of TF_CONFIG. ps:N becomes `ps_server`; any other task, and a job without a cluster, becomes `worker`. All other flags are for that program, and `ps_server --help` and `worker --help` list them. --task=pod reads the pod's name from POD_NAME, or else the host name. Exit codes are those of the program; 78: the cluster spec or the task is wrong.)";

constexpr const char* kStatusExamples = R"(Examples:
  weir status --cluster=configs/cluster_2ps_2workers.json
  weir status --cluster=dns:ps=weir-ps:2
  weir status --address=127.0.0.1:2222 --json
  weir status --address=127.0.0.1:2222 --why)";

constexpr const char* kCheckpointExamples = R"(Examples:
  weir checkpoint take --address=127.0.0.1:2222
  weir checkpoint list runs/digits
  weir checkpoint verify runs/digits/step-00001200)";

constexpr const char* kTableExamples = R"(Examples:
  weir table stats --address=127.0.0.1:2222
  weir table stats users --checkpoint=runs/clicks --json
  weir table get users 42 17 --address=127.0.0.1:2222 --slots)";

constexpr const char* kCertsExamples = R"(Examples:
  weir certs init certs --spec=configs/cluster_2ps_2workers.json
  weir certs check certs/worker-0.pem)";

constexpr const char* kDataExamples = R"(Examples:
  weir data clicks clicks
  weir data clicks clicks --rows=1000000 --users=100000 --items=20000 --seed=7)";

constexpr const char* kExportExamples = R"(Examples:
  weir export runs/digits digits.safetensors)";

constexpr const char* kImportExamples = R"(Examples:
  weir import digits.safetensors pretrained
  weir import model.safetensors pretrained --like=runs/model)";

constexpr const char* kReplayExamples = R"(Examples:
  weir replay runs/digits)";

constexpr const char* kManifestExamples = R"(Examples:
  weir manifest job.json --ps=4 --workers=16
  weir manifest job.json --ps=4 --workers=16 --format=tfjob --evaluator --namespace=training --out=my-job
  weir manifest job.json --workers=8 --gpu --image=registry.example.com/weir:0.1.0 --gpu_image=registry.example.com/weir-gpu:0.1.0
  weir manifest configs/digits.json --workers=4 --set checkpoint.directory=/var/lib/weir/checkpoints

The folder holds all that `kubectl apply -k` needs. Paths in the config are those of pods: data files lie in one folder, where pods mount the claim weir-data, and checkpoint.directory lies below /var/lib/weir, or is s3://BUCKET/PREFIX. More: docs/deploy.md)";

constexpr const char* kBenchExamples = R"(Examples:
  weir bench wire
  weir bench wire --sizes=1KB,64MB,1GB --layouts=1x1,2x4 --optimizers=sgd,momentum,adam --json=wire.json
All flags: docs/cli.md
)";

constexpr const char* kDemoExamples = R"(Examples:
  weir demo
  weir demo --seed=1 --seeds=5)";

constexpr const char* kDoctorExamples = R"(Examples:
  weir doctor
  weir doctor --json)";

constexpr const char* kConfigExamples = R"(Examples:
  weir config check configs/digits.json
  weir config show configs/digits.json --set train.epochs=3
  weir config fields)";

void AddOverrides(CLI::App* command, std::vector<std::string>* overrides) {
  command->add_option("--set", *overrides, "Overrides a field of the config; may be given again")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* AddConfig(CLI::App* command, std::string* config) {
  return command->add_option("config", *config, "Job config (JSON with comments)")->type_name("FILE");
}

// Returns the options that say where ps:0 is.
std::vector<CLI::Option*> AddCluster(CLI::App* command, ClusterFlags* flags) {
  CLI::Option* cluster = command
                             ->add_option("--cluster", flags->cluster,
                                          "Cluster spec or a TF_CONFIG, or dns:ps=NAME:COUNT for pods")
                             ->type_name("FILE");
  CLI::Option* address = command->add_option("--address", flags->address, "Address of ps:0")
                             ->type_name("HOST:PORT")
                             ->excludes(cluster);
  command->add_option("--token_file", flags->token_file, "The job's token, if its servers have one")
      ->envname("WEIR_TOKEN_FILE")
      ->type_name("FILE");
  AddTlsFlags(command, &flags->tls);
  return {cluster, address};
}

void AddDevice(CLI::App* command, std::string* device) {
  command
      ->add_option(
          "--device", *device,
          "Where workers compute: auto (a GPU if there is one), cpu, cuda:N; cuda:0,cuda:1 for replicas "
          "in each worker")
      ->check([](const std::string& text) { return std::string(ParseDevices(text).status().message()); })
      ->capture_default_str();
}

constexpr const char* kOneCheckpoint =
    "A checkpoint, or a folder of them, whose newest it is (DIR/best: the best)";

void AddCheckpoint(CLI::App* command, std::string* path, const char* what) {
  command->add_option("checkpoint", *path, what)->type_name("DIR")->required();
}

// The command of these words, `app` itself if there are none; nullptr: there is no such command.
const CLI::App* FindCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> found =
        command->get_subcommands([&word](const CLI::App* sub) { return sub->get_name() == word; });
    if (found.empty()) return nullptr;
    command = found.front();
  }
  return command;
}

// CLI11 reads -1 as 2^64 - 1.
const CLI::Validator kWholeNumber(
    [](const std::string& text) {
      const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
      return digits ? "" : "must be a whole number from 0 to 2^64 - 1, got '" + text + "'";
    },
    "UINT64");

int Main(int argc, char** argv) {
  CLI::App app("Weir, a parameter server for stochastic gradient descent.", "weir");
  app.footer(kExamples);
  app.require_subcommand(1);

  UpOptions up;
  int up_workers = 0;
  int http_port = 0;
  uint64_t up_seed = 0;
  CLI::App* up_command = app.add_subcommand("up", "Runs a job with servers and workers on this machine");
  up_command->footer(kUpExamples);
  AddConfig(up_command, &up.config)->required();
  up_command->add_option("--ps", up.ps, "Servers")->check(CLI::Range(1, 64))->capture_default_str();
  const CLI::Option* workers =
      up_command->add_option("--workers", up_workers, "Workers (default: the config's cluster.workers, or 1)")
          ->check(CLI::Range(1, 256));
  const CLI::Option* seed =
      up_command->add_option("--seed", up_seed, "Everything random follows from it (default: the config's)")
          ->check(kWholeNumber);
  AddDevice(up_command, &up.device);
  AddOverrides(up_command, &up.overrides);
  up_command->add_option("--summary", up.summary, "Writes the summary there as JSON")->type_name("FILE");
  CLI::Option* log_dir =
      up_command
          ->add_option(
              "--log_dir", up.log_dir,
              "Logs of all tasks (default: a fresh folder in $TMPDIR or /tmp, which goes if all went well)")
          ->type_name("DIR");
  up_command->add_flag("--keep_logs", up.keep_logs, "Keeps that fresh folder, and names it")
      ->excludes(log_dir);
  up_command->add_flag(
      "--evaluator", up.evaluator,
      "Adds a task that evaluates every so often: `worker` the test set, PROGRAM what it likes");
  up_command->add_flag("--tls", up.tls, "Mutual TLS between the tasks, with certificates made for this job");
  const CLI::Option* http =
      up_command
          ->add_option("--http_port", http_port,
                       "Port of ps:0's dashboard, /metrics, /healthz and /readyz; 0: any free port")
          ->check(CLI::Range(0, 65535));
  up_command
      ->add_option("--bin_dir", up.bin_dir, "Where ps_server and worker are (default: beside this program)")
      ->type_name("DIR");
  up_command
      ->add_flag(
          "--restart{3}", up.restart,
          "Starts tasks that died again, each so many times (--restart alone: 3); servers only where the "
          "job has checkpoints")
      ->type_name("N")
      ->check(CLI::Range(0, 1000));
  CLI::Option* resume = up_command
                            ->add_option("--resume", up.resume,
                                         "Goes on with the job whose checkpoints are there, and saves there")
                            ->type_name("DIR");
  up_command
      ->add_option("--init_from", up.init_from,
                   "Starts a new job with the weights of a checkpoint, or of the newest of a folder "
                   "(DIR/best: the best)")
      ->type_name("DIR")
      ->excludes(resume);
  up_command->add_flag("--verbose", up.verbose,
                       "Shows all lines of all tasks, not warnings and errors alone");

  RunOptions run;
  CLI::App* run_command = app.add_subcommand(
      "run", "Becomes the server or worker that this process's task names: for containers");
  run_command->footer(kRunExamples);
  run_command->allow_extras();
  run_command
      ->add_option("--cluster", run.cluster,
                   "Cluster spec, or dns:JOB=NAME:COUNT[:PORT],... for pods (default: TF_CONFIG's)")
      ->type_name("FILE");
  run_command->add_option("--task", run.task, "TYPE:INDEX, or pod: what the pod's name says")
      ->type_name("TASK");

  StatusOptions status;
  CLI::App* status_command = app.add_subcommand("status", "Asks a running cluster how it is");
  status_command->footer(kStatusExamples);
  AddCluster(status_command, &status.cluster);
  status_command->add_flag("--json", status.json, "Prints JSON");
  status_command->add_flag("--why", status.why, "Tells what waits for what, from server to server")
      ->excludes("--json");

  DemoOptions demo;
  CLI::App* demo_command =
      app.add_subcommand("demo", "Trains digits with 2 servers and 4 workers in each of the three modes");
  demo_command->footer(kDemoExamples);
  demo_command->add_option("--seed", demo.seed, "The first seed")->check(kWholeNumber)->capture_default_str();
  demo_command->add_option("--seeds", demo.seeds, "How many seeds, one after another")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  demo_command->add_option("--config", demo.config, "Another job (default: configs/digits.json)")
      ->type_name("FILE");
  AddDevice(demo_command, &demo.device);
  AddOverrides(demo_command, &demo.overrides);
  demo_command
      ->add_option("--bin_dir", demo.bin_dir, "Where ps_server and worker are (default: beside this program)")
      ->type_name("DIR");
  demo_command->add_flag("--verbose", demo.verbose, "Shows all lines of all tasks");

  std::string config_file;
  uint32_t config_ps = 1, config_workers = 1;
  std::vector<std::string> config_overrides;
  CLI::App* config_command = app.add_subcommand("config", "Looks at a job config without running it");
  config_command->footer(kConfigExamples);
  config_command->require_subcommand(1);
  CLI::App* check_command = config_command->add_subcommand("check", "Says what is wrong with it");
  CLI::App* show_command = config_command->add_subcommand("show", "Prints it with all defaults");
  CLI::App* fields_command = config_command->add_subcommand(
      "fields", "Prints all fields that a config may have, with types, defaults, limits and meanings");
  for (CLI::App* command : {check_command, show_command}) {
    AddConfig(command, &config_file)->required();
    AddOverrides(command, &config_overrides);
  }
  show_command->add_option("--ps", config_ps, "Servers, for a server's memory in bytes")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  const CLI::Option* show_workers =
      show_command
          ->add_option("--workers", config_workers,
                       "Workers, likewise (default: the config's cluster.workers, or 1)")
          ->check(CLI::Range(1, kMostTasks));

  ClusterFlags take_cluster;
  std::string checkpoint_path, export_to;
  CLI::App* checkpoint_command = app.add_subcommand("checkpoint", "Takes, lists and verifies checkpoints");
  checkpoint_command->footer(kCheckpointExamples);
  checkpoint_command->require_subcommand(1);
  CLI::App* take_command = checkpoint_command->add_subcommand(
      "take", "Makes a running job take a checkpoint now, and waits for it");
  AddCluster(take_command, &take_cluster);
  CLI::App* list_command = checkpoint_command->add_subcommand("list", "Lists those in a folder");
  AddCheckpoint(list_command, &checkpoint_path, "The folder (checkpoint.directory)");
  CLI::App* verify_command =
      checkpoint_command->add_subcommand("verify", "Checks all bytes of a checkpoint against its checksums");
  AddCheckpoint(verify_command, &checkpoint_path, kOneCheckpoint);

  TableOptions table;
  CLI::App* table_command =
      app.add_subcommand("table", "Looks at the embedding tables of a running job or a checkpoint");
  table_command->footer(kTableExamples);
  table_command->require_subcommand(1);
  CLI::App* table_stats_command =
      table_command->add_subcommand("stats", "Says how many rows they have, and which keys are the hottest");
  CLI::App* table_get_command = table_command->add_subcommand("get", "Prints the rows of some keys");
  table_stats_command->add_option("table", table.table, "One table (default: all)")->type_name("NAME");
  table_get_command->add_option("table", table.table, "The table")->type_name("NAME")->required();
  table_get_command->add_option("key", table.keys, "Keys, from 0 to 2^64 - 1")
      ->type_name("KEY")
      ->check(kWholeNumber)
      ->required();
  table_get_command->add_flag("--slots", table.slots, "Prints what the optimizer keeps for each row, too");
  for (CLI::App* command : {table_stats_command, table_get_command}) {
    const std::vector<CLI::Option*> job = AddCluster(command, &table.cluster);
    CLI::Option* saved = command->add_option("--checkpoint", table.checkpoint, kOneCheckpoint);
    saved->type_name("DIR");
    for (CLI::Option* option : job) saved->excludes(option);
    command->add_flag("--json", table.json, "Prints JSON");
  }

  CertsInitOptions certs;
  std::string certificate;
  CLI::App* certs_command =
      app.add_subcommand("certs", "Makes certificates for TLS, and says what one allows");
  certs_command->footer(kCertsExamples);
  certs_command->require_subcommand(1);
  CLI::App* certs_init_command = certs_command->add_subcommand(
      "init",
      "Makes a development CA, and certificates and keys for a cluster's tasks, a reader and an admin");
  certs_init_command->add_option("directory", certs.directory, "A new folder for them")
      ->type_name("DIR")
      ->required();
  certs_init_command
      ->add_option("--spec", certs.spec,
                   "Cluster spec or a TF_CONFIG, or dns:ps=NAME:COUNT,worker=NAME:COUNT")
      ->type_name("FILE")
      ->required();
  certs_init_command->add_option("--job", certs.job, "The job's name in the certificates")
      ->type_name("NAME")
      ->capture_default_str();
  certs_init_command->add_option("--days", certs.days, "For how long they are valid")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();
  CLI::App* certs_check_command = certs_command->add_subcommand(
      "check", "Says whose certificate it is, what it allows, and when it ends");
  certs_check_command->add_option("certificate", certificate, "The certificate (PEM)")
      ->type_name("FILE")
      ->required();

  CLI::App* export_command =
      app.add_subcommand("export", "Writes the weights of a checkpoint into one safetensors file");
  export_command->footer(kExportExamples);
  AddCheckpoint(export_command, &checkpoint_path, kOneCheckpoint);
  export_command->add_option("out", export_to, "The file to write")->type_name("FILE")->required();

  ImportOptions import;
  CLI::App* import_command =
      app.add_subcommand("import", "Makes a safetensors file initial weights, for checkpoint.init_from");
  import_command->footer(kImportExamples);
  import_command->add_option("file", import.file, "The safetensors file")->type_name("FILE")->required();
  import_command
      ->add_option("directory", import.directory, "The folder to write, new or without initial weights")
      ->type_name("DIR")
      ->required();
  import_command
      ->add_option("--like", import.like,
                   "A checkpoint of the same model: its order of tensors, and which are running statistics "
                   "(default: the order in the file, and PyTorch's names)")
      ->type_name("DIR");

  CLI::App* replay_command = app.add_subcommand(
      "replay", "Makes the weights of a bounded or async job again from its logs, and prints their SHA-256");
  replay_command->footer(kReplayExamples);
  AddCheckpoint(replay_command, &checkpoint_path, "The job's folder of checkpoints (checkpoint.directory)");

  ManifestOptions manifest;
  int64_t manifest_parameters = 0, manifest_worker_mib = 0;
  CLI::App* manifest_command =
      app.add_subcommand("manifest", "Writes the Kubernetes manifests of a job into a folder");
  manifest_command->footer(kManifestExamples);
  AddConfig(manifest_command, &manifest.config)->required();
  manifest_command->add_option("--ps", manifest.ps, "Servers")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  manifest_command->add_option("--workers", manifest.workers, "Workers")
      ->check(CLI::Range(1, kMostTasks))
      ->capture_default_str();
  manifest_command->add_flag("--evaluator", manifest.evaluator,
                             "Adds a task that evaluates the test set every so often");
  manifest_command->add_flag("--gpu", manifest.gpu, "Each worker computes on an NVIDIA GPU");
  manifest_command->add_flag(
      "--tls", manifest.tls,
      "All connections of the job have mutual TLS, with certificates of weir certs init");
  manifest_command->add_option("--format", manifest.format, "kustomize, jobset or tfjob")
      ->check(CLI::IsMember({"kustomize", "jobset", "tfjob"}))
      ->capture_default_str();
  manifest_command->add_option("--out", manifest.out, "The folder, new or empty")
      ->type_name("DIR")
      ->capture_default_str();
  manifest_command->add_flag("--force", manifest.force,
                             "Writes over the files of a folder that is not empty");
  manifest_command->add_option("--namespace", manifest.name_space, "Where the job runs (default: kubectl's)")
      ->check(CheckNamespace)
      ->type_name("NAME");
  manifest_command->add_option("--image", manifest.image, "Of all tasks (default: weir:VERSION)")
      ->check(CheckImage)
      ->type_name("NAME:TAG");
  manifest_command
      ->add_option("--gpu_image", manifest.gpu_image, "Of workers with --gpu (default: weir-gpu:VERSION)")
      ->check(CheckImage)
      ->type_name("NAME:TAG");
  const CLI::Option* parameters = manifest_command
                                      ->add_option("--parameters", manifest_parameters,
                                                   "Of the model, where the data are not on this machine")
                                      ->check(CLI::Range(int64_t{1}, kMaxElements));
  const CLI::Option* worker_mib =
      manifest_command
          ->add_option("--worker_memory_mib", manifest_worker_mib,
                       "MiB for each worker, instead of what follows from the data on this machine")
          ->check(CLI::Range(1, 1 << 30));
  AddOverrides(manifest_command, &manifest.overrides);

  DataClicksOptions clicks;
  CLI::App* data_command = app.add_subcommand("data", "Makes data to train on");
  data_command->footer(kDataExamples);
  data_command->require_subcommand(1);
  CLI::App* clicks_command = data_command->add_subcommand(
      "clicks", "Writes a synthetic click log, and says which log loss and AUC a model can reach on it");
  clicks_command->add_option("directory", clicks.directory, "The folder for train.csv and test.csv")
      ->type_name("DIR")
      ->required();
  const auto add_count = [&](const char* flag, auto* count, const char* what, uint64_t most) {
    clicks_command->add_option(flag, *count, what)
        ->check(CLI::Range(uint64_t{1}, most))
        ->capture_default_str();
  };
  constexpr uint64_t kMostRows = 100000000, kMostKeys = 10000000;
  add_count("--rows", &clicks.rows, "Rows of train.csv", kMostRows);
  add_count("--test_rows", &clicks.test_rows, "Rows of test.csv, which follow those", kMostRows);
  clicks_command->add_option("--seed", clicks.log.seed, "Another truth and other rows")
      ->capture_default_str();
  add_count("--users", &clicks.log.users, "Users", kMostKeys);
  add_count("--items", &clicks.log.items, "Items", kMostKeys);
  add_count("--tags", &clicks.log.tags, "Tags; a row has up to 4", kMostKeys);
  clicks_command->add_option("--exponent", clicks.log.exponent, "Of Zipf's law for all keys")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();

  // The command's words are weir_bench's, --help included.
  CLI::App* bench_command =
      app.add_subcommand("bench", "Measures how fast weights and gradients move on these machines");
  bench_command->prefix_command();
  bench_command->set_help_flag();
  bench_command->footer(kBenchExamples);

  bool doctor_json = false;
  CLI::App* doctor_command =
      app.add_subcommand("doctor", "Says what Weir finds on this machine: processor, memory, network, GPUs");
  doctor_command->footer(kDoctorExamples);
  doctor_command->add_flag("--json", doctor_json, "Prints JSON");

  CLI::App* version_command = app.add_subcommand("version", "Prints the version");
  std::vector<std::string> about;
  CLI::App* help_command = app.add_subcommand("help", "Prints the help of a command, or this help");
  CLI::App* man_command =
      app.add_subcommand("man", "Prints the manual page of a command, or of weir, for man -l -");
  for (CLI::App* command : {help_command, man_command}) {
    command->add_option("command", about, "Its words: `checkpoint take`, say");
  }
  CLI::App* completion_command =
      app.add_subcommand("completion", "Prints a script that completes these commands in bash");
  completion_command->footer("Examples:\n  . <(weir completion)");

  char** const end = argv + argc;
  char** const dashes =
      argc > 1 && std::strcmp(argv[1], "up") == 0 ? std::find(argv, end, std::string("--")) : end;
  if (const std::optional<int> exit = ReadCommandLine(app, static_cast<int>(dashes - argv), argv)) {
    const std::vector<std::string> unknown = up_command->remaining();
    if (dashes == end && !unknown.empty() && unknown.front()[0] != '-') {
      std::vector<std::string> words(argv + 1, end);
      words.insert(std::find(words.begin(), words.end(), unknown.front()), "--");
      std::fprintf(stderr, "if `%s` is the program that each worker runs, put -- before it: weir %s\n",
                   unknown.front().c_str(), absl::StrJoin(words, " ").c_str());
    }
    return *exit;
  }
  if (dashes != end) {
    up.program.assign(dashes + 1, end);
    if (up.program.empty())
      return BadCommandLine(*up_command, "after -- comes a program, with its arguments");
  }

  if (workers->count() > 0) up.workers = up_workers;
  if (seed->count() > 0) up.seed = up_seed;
  if (http->count() > 0) up.http_port = http_port;
  if (up_command->parsed()) return RunUp(up);
  if (run_command->parsed()) {
    run.others = run_command->remaining();
    return RunTask(run);
  }
  if (status_command->parsed()) return RunStatus(status);
  if (demo_command->parsed()) return RunDemo(demo);
  if (check_command->parsed()) {
    return RunConfigCheck(config_file, config_overrides, FindProgram("worker", "worker"));
  }
  if (fields_command->parsed()) return RunConfigFields();
  if (show_command->parsed()) {
    return RunConfigShow(config_file, config_overrides, config_ps,
                         show_workers->count() > 0 ? std::optional<uint32_t>(config_workers) : std::nullopt);
  }
  if (clicks_command->parsed()) return RunDataClicks(clicks);
  if (take_command->parsed()) return RunCheckpointTake(take_cluster);
  if (list_command->parsed()) return RunCheckpointList(checkpoint_path);
  if (verify_command->parsed()) return RunCheckpointVerify(checkpoint_path);
  if (table_stats_command->parsed()) return RunTableStats(table);
  if (table_get_command->parsed()) return RunTableGet(table);
  if (certs_init_command->parsed()) return RunCertsInit(certs);
  if (certs_check_command->parsed()) return RunCertsCheck(certificate);
  if (export_command->parsed()) return RunExport(checkpoint_path, export_to);
  if (import_command->parsed()) return RunImport(import);
  if (manifest_command->parsed()) {
    if (parameters->count() > 0) manifest.parameters = manifest_parameters;
    if (worker_mib->count() > 0) manifest.worker_mib = manifest_worker_mib;
    return RunManifest(manifest);
  }
  if (replay_command->parsed()) {
    return BecomeProgram("ps_server", "ps_server", {"--replay", checkpoint_path}, replay_command->help());
  }
  if (bench_command->parsed()) {
    return BecomeProgram("bench", "weir_bench", bench_command->remaining(), bench_command->help());
  }
  if (doctor_command->parsed()) return RunDoctor(doctor_json);
  if (version_command->parsed()) std::printf("weir %s\n", kVersion);
  if (completion_command->parsed()) std::fputs(BashCompletion(app).c_str(), stdout);
  if (help_command->parsed() || man_command->parsed()) {
    const CLI::App* const command = FindCommand(app, about);
    const std::string words = absl::StrJoin(about, " ");
    if (command == nullptr) return BadCommandLine(app, absl::StrCat("there is no command '", words, "'"));
    const std::string name = about.empty() ? "weir" : absl::StrCat("weir ", words);
    const std::string text = help_command->parsed() ? command->get_formatter()->make_help(
                                                          command, name, CLI::AppFormatMode::Normal)
                                                    : ManualPage(*command, name);
    std::fputs(text.c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace

int RunWeir(int argc, char** argv) { return Main(argc, argv); }

}  // namespace weir
