// `weir run`: one entry point for all tasks of a cluster, such as the one of a container image.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/installation/installation.h"
#include "cli/installation/task_environment.h"
#include "common/config/cluster_spec.h"
#include "common/config/json_document.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

struct RunOptions {
  std::string cluster, task;           // the flags of ps_server and worker; "": not given
  std::vector<std::string> overrides;  // --set
  std::vector<std::string> others;     // all other words before --, for ps_server or worker
  std::vector<std::string> program;    // what follows --; empty: `worker`
};

std::string TfConfig(const TaskEnvironment& environment) {
  const bool dynamic = environment.cluster.IsDynamic();
  const auto add_address = [&](std::string* out, const std::pair<const uint32_t, std::string>& task) {
    absl::StrAppend(out, dynamic ? absl::StrCat("\"", task.first, "\":") : "", JsonQuote(task.second));
  };
  std::vector<std::string> jobs;
  for (const auto& [job, addresses] : environment.cluster.jobs()) {
    jobs.push_back(absl::StrCat(JsonQuote(job), ":", dynamic ? "{" : "[",
                                absl::StrJoin(addresses, ",", add_address), dynamic ? "}" : "]"));
  }
  return absl::StrCat(R"({"cluster":{)", absl::StrJoin(jobs, ","), R"(},"task":{"type":)",
                      JsonQuote(environment.task.type), R"(,"index":)", environment.task.index, "}}");
}

// Runs the user's program to its end, as a child: Python as process 1 of a container would not end at
// SIGTERM.
int RunProgram(const RunOptions& options, const std::optional<TaskEnvironment>& environment) {
  if (const absl::Status status = CheckCanRun(options.program[0]); !status.ok()) {
    return Refuse(kExitConfig, absl::StrCat(status.message(),
                                            "; a container has what its image has: docs/deploy.md, "
                                            "section Python programs, says how to make one"));
  }
  Subprocess::Options child;
  child.args = options.program;
  // TF_CONFIG as it is has all that its maker has written.
  const bool by_flags = !options.cluster.empty() || !options.task.empty();
  if (environment.has_value() && by_flags) child.environment["TF_CONFIG"] = TfConfig(*environment);
  if (!options.overrides.empty()) {
    child.environment["WEIR_SET"] = JsonList(options.overrides);
  }
  const absl::StatusOr<std::unique_ptr<Subprocess>> process = Subprocess::Start(std::move(child));
  if (!process.ok()) return Refuse(kExitConfig, process.status().message());
  const auto waiter = SignalWaiter::Start({SIGINT, SIGTERM}, [&](int signal) { (*process)->Signal(signal); });
  if (!waiter.ok()) return Refuse(kExitInternal, waiter.status().message());
  return (*process)->Wait().status();
}

int RunTask(const RunOptions& options) {
  // The kernel drops a signal to process 1 that is neither blocked nor handled. The program keeps this mask,
  // and takes a signal that has come when it waits for signals.
  BlockSignals({SIGINT, SIGTERM});
  const auto environment =
      FromEnvironment(std::getenv("TF_CONFIG"), options.cluster, options.task, Pod::Current());
  if (!environment.ok()) return Refuse(kExitConfig, environment.status().message());
  const bool serves = environment->has_value() && (*environment)->task.type == "ps";
  if (!options.program.empty() && !serves) {
    if (options.others.empty()) return RunProgram(options, *environment);
    return Refuse(kExitUsage, absl::StrCat(options.others[0],
                                           ": a program gets no flags of `worker`; its own "
                                           "follow it, after --"));
  }
  std::vector<std::string> args = options.others;
  for (const std::string& override : options.overrides) args.insert(args.end(), {"--set", override});
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
  weir run --cluster=dns:ps=weir-ps:2,worker=weir-worker:4 --task=pod -- python train.py

The task is, in this order, that of --task, of the file --cluster, or of TF_CONFIG. ps:N becomes `ps_server`; any other task, and a job without a cluster, becomes `worker`. All other flags are for that program, and `ps_server --help` and `worker --help` list them. What follows -- is a program that runs instead of `worker`; it finds its task in TF_CONFIG, and the overrides of --set in WEIR_SET. --task=pod reads the pod's name from POD_NAME, or else the host name. Exit codes are those of the program; 78: the cluster spec or the task is wrong.)";

}  // namespace

void AddRunCommand(Commands& commands) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = commands.Add(
      "run", "Become the server or worker that this process's task names: for containers", kRunExamples);
  command->allow_extras();
  AddNamed(command, "--cluster", &options->cluster, "FILE",
           "Cluster spec, or dns:JOB=NAME:COUNT[:PORT],... for pods (default: TF_CONFIG's)");
  AddNamed(command, "--task", &options->task, "TASK", "TYPE:INDEX, or pod: what the pod's name says");
  AddOverrides(command, &options->overrides);
  commands.OnRunWithProgram(command, &options->program, [command, options] {
    options->others = command->remaining();
    return RunTask(*options);
  });
}

}  // namespace weir
