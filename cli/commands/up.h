#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/local_cluster/interrupts.h"
#include "cli/report/console.h"
#include "cli/report/summary.h"

// `weir up`: a whole job on this machine, from the first process to the last.
namespace weir {

struct UpOptions {
  std::string config;
  std::vector<std::string> program;    // what each worker runs, with its arguments; empty: `worker`
  std::vector<std::string> overrides;  // "a.b=value"; the last one for a field wins
  int ps = 1;
  std::optional<int> workers;  // default: the config's cluster.workers, or 1
  std::optional<uint64_t> seed;
  std::string device = "auto";  // --device of workers and evaluator
  bool evaluator = false;
  bool tls = false;              // mutual TLS between the tasks
  std::optional<int> http_port;  // of ps:0; 0: any free one
  std::string summary;           // JSON for programs; "": none
  std::string log_dir;           // "": a fresh temporary folder, which is removed if all went well
  bool keep_logs = false;        // keeps that folder
  std::string bin_dir;           // of ps_server and worker; "": beside this program
  bool verbose = false;          // shows all lines of all tasks
  int restart = 0;               // how often each task that died is started again
  std::string resume;            // a folder of checkpoints: goes on from the newest; "": a new job
  std::string init_from;         // a checkpoint, or a folder of them, whose weights a new job starts with
};

struct UpResult {
  // 0; 78: the config is bad; 130, 143: ended by Ctrl-C, SIGTERM; else the code of the task that is the first
  // cause, or 138 if a signal ended that task.
  int exit_code = 0;
  std::string job_name;
  std::string log_dir;                // "": the logs are gone
  std::optional<JobSummary> summary;  // set if exit_code is 0
};

// Runs the job to its end. What happens is shown on the console; the caller shows the summary. No process is
// left behind. If a worker is killed from outside, that is reported and the job goes on. The job also goes on
// without a server that can be started again and finds a checkpoint. On a signal, a job with checkpoints
// saves one first. A new job is refused if there are checkpoints of another.
UpResult RunJob(const UpOptions& options, Console& console, Interrupts& interrupts);

// The command: RunJob, then the summary on standard output. Returns the exit code.
int RunUp(const UpOptions& options);

}  // namespace weir
