#include "cli/command_line/job_commands.h"

#include <memory>

#include "cli/command_line/shared_options.h"
#include "cli/commands/demo.h"
#include "cli/commands/run.h"
#include "cli/commands/status_command.h"

namespace weir {

constexpr const char* kRunExamples = R"(Examples:
  weir run --config=job.json --cluster=dns:ps=weir-ps:2,worker=weir-worker:4 --task=pod
  weir run --config=job.json --cluster=cluster.json --task=ps:0 --http_port=8080
  TF_CONFIG='{"cluster": ...}' weir run --config=job.json

The task is, in this order, that of --task, of the file --cluster, or of TF_CONFIG. ps:N becomes `ps_server`; any other task, and a job without a cluster, becomes `worker`. All other flags are for that program, and `ps_server --help` and `worker --help` list them. --task=pod reads the pod's name from POD_NAME, or else the host name. Exit codes are those of the program; 78: the cluster spec or the task is wrong.)";

void AddRunCommand(Commands& commands) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = commands.Add(
      "run", "Becomes the server or worker that this process's task names: for containers", kRunExamples);
  command->allow_extras();
  command
      ->add_option("--cluster", options->cluster,
                   "Cluster spec, or dns:JOB=NAME:COUNT[:PORT],... for pods (default: TF_CONFIG's)")
      ->type_name("FILE");
  command->add_option("--task", options->task, "TYPE:INDEX, or pod: what the pod's name says")
      ->type_name("TASK");
  commands.OnRun(command, [command, options] {
    options->others = command->remaining();
    return RunTask(*options);
  });
}

constexpr const char* kStatusExamples = R"(Examples:
  weir status --cluster=configs/cluster_2ps_2workers.json
  weir status --cluster=dns:ps=weir-ps:2
  weir status --address=127.0.0.1:2222 --json
  weir status --address=127.0.0.1:2222 --why)";

void AddStatusCommand(Commands& commands) {
  const auto options = std::make_shared<StatusOptions>();
  CLI::App* command = commands.Add("status", "Asks a running cluster how it is", kStatusExamples);
  AddCluster(command, &options->cluster);
  command->add_flag("--json", options->json, "Prints JSON");
  command->add_flag("--why", options->why, "Tells what waits for what, from server to server")
      ->excludes("--json");
  commands.OnRun(command, [options] { return RunStatus(*options); });
}

constexpr const char* kDemoExamples = R"(Examples:
  weir demo
  weir demo --seed=1 --seeds=5)";

void AddDemoCommand(Commands& commands) {
  const auto options = std::make_shared<DemoOptions>();
  CLI::App* command = commands.Add(
      "demo", "Trains digits with 2 servers and 4 workers in each of the three modes", kDemoExamples);
  command->add_option("--seed", options->seed, "The first seed")->check(WholeNumber())->capture_default_str();
  command->add_option("--seeds", options->seeds, "How many seeds, one after another")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--config", options->config, "Another job (default: configs/digits.json)")
      ->type_name("FILE");
  AddDevice(command, &options->device);
  AddOverrides(command, &options->overrides);
  command
      ->add_option("--bin_dir", options->bin_dir,
                   "Where ps_server and worker are (default: beside this program)")
      ->type_name("DIR");
  command->add_flag("--verbose", options->verbose, "Shows all lines of all tasks");
  commands.OnRun(command, [options] { return RunDemo(*options); });
}

}  // namespace weir
