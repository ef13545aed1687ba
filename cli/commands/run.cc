// `weir run`: one entry point for all tasks of a cluster, such as the one of a container image.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/installation/installation.h"
#include "common/config/cluster_spec.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"

namespace weir {
namespace {

struct RunOptions {
  std::string cluster, task;        // the flags of ps_server and worker; "": not given
  std::vector<std::string> others;  // all other words, for the program
};

int RunTask(const RunOptions& options) {
  // The kernel drops a signal to process 1 that is neither blocked nor handled. The program keeps this mask,
  // and takes a signal that has come when it waits for signals.
  BlockSignals({SIGINT, SIGTERM});
  const auto environment =
      FromEnvironment(std::getenv("TF_CONFIG"), options.cluster, options.task, Pod::Current());
  if (!environment.ok()) return Refuse(kExitConfig, environment.status().message());
  const bool serves = environment->has_value() && (*environment)->task.type == "ps";
  std::vector<std::string> args = options.others;
  if (!options.cluster.empty()) args.push_back(absl::StrCat("--cluster=", options.cluster));
  if (!options.task.empty()) args.push_back(absl::StrCat("--task=", options.task));
  // Process 1 inherits the orphans of its container, such as what a shell there has left. Neither program
  // waits for children.
  if (getpid() == 1) std::signal(SIGCHLD, SIG_IGN);
  const std::string name = serves ? "ps_server" : "worker";
  return BecomeProgram(name, name, args, /*help=*/"");
}

constexpr const char* kRunExamples = R"(Examples:
  weir run --config=job.json --cluster=dns:ps=weir-ps:2,worker=weir-worker:4 --task=pod
  weir run --config=job.json --cluster=cluster.json --task=ps:0 --http_port=8080
  TF_CONFIG='{"cluster": ...}' weir run --config=job.json

The task is, in this order, that of --task, of the file --cluster, or of TF_CONFIG. ps:N becomes `ps_server`; any other task, and a job without a cluster, becomes `worker`. All other flags are for that program, and `ps_server --help` and `worker --help` list them. --task=pod reads the pod's name from POD_NAME, or else the host name. Exit codes are those of the program; 78: the cluster spec or the task is wrong.)";

}  // namespace

void AddRunCommand(Commands& commands) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = commands.Add(
      "run", "Becomes the server or worker that this process's task names: for containers", kRunExamples);
  command->allow_extras();
  AddNamed(command, "--cluster", &options->cluster, "FILE",
           "Cluster spec, or dns:JOB=NAME:COUNT[:PORT],... for pods (default: TF_CONFIG's)");
  AddNamed(command, "--task", &options->task, "TASK", "TYPE:INDEX, or pod: what the pod's name says");
  commands.OnRun(command, [command, options] {
    options->others = command->remaining();
    return RunTask(*options);
  });
}

}  // namespace weir
