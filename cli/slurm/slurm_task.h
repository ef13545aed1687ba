#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weir {

// One task of a job inside srun. SLURM_PROCID says which one it is, but for elements of an array.
struct SlurmTask {
  std::string type;                  // "ps" or "worker", which its step is of
  bool array = false;                // the task is worker SLURM_ARRAY_TASK_ID, and nobody reads reports
  int workers = 0;                   // a task of a step of workers beyond this number is the evaluator
  std::vector<std::string> servers;  // for workers: the addresses of all servers
  std::string folder;                // of the job, which all nodes see: certificates, ports, the summary
  int restart = 0;                   // how often a program that died is started again
  std::vector<std::string> program;  // with its arguments
};

// Runs the program to its end, as a child, with TF_CONFIG and its own certificate in its environment; where
// it dies without asking not to be, starts it again, a server at its old port. Reports (task_report.h) on
// standard output, to which the program writes, too. Returns the exit code: the program's last, 128 + the
// signal that killed it. On SIGTERM, with which SLURM ends each process of a step, nothing is started again.
// FailedPrecondition: srun has not started this process.
absl::StatusOr<int> RunSlurmTask(const SlurmTask& task);

}  // namespace weir
