#include "cli/commands/run.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "cli/local_cluster/other_program.h"
#include "common/config/cluster_spec.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"

namespace weir {

int RunTask(const RunOptions& options) {
  // The kernel drops a signal to process 1 that is neither blocked nor handled. The program keeps this mask,
  // and takes a signal that has come when it waits for signals.
  BlockSignals({SIGINT, SIGTERM});
  const auto environment =
      FromEnvironment(std::getenv("TF_CONFIG"), options.cluster, options.task, Pod::Current());
  if (!environment.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(environment.status().message()).c_str());
    return kExitConfig;
  }
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

}  // namespace weir
