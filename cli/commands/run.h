#pragma once

#include <string>
#include <vector>

// `weir run`: one entry point for all tasks of a cluster, such as the one of a container image.
namespace weir {

struct RunOptions {
  std::string cluster, task;        // the flags of ps_server and worker; "": not given
  std::vector<std::string> others;  // all other words, for the program
};

// Becomes the program of this process's task, which FromEnvironment() (common/config/cluster_spec.h) finds:
// ps_server for a server, else worker. As process 1 of a container, too: no signal is lost meanwhile, and the
// kernel reaps orphans. Returns an exit code only if that is not possible.
int RunTask(const RunOptions& options);

}  // namespace weir
