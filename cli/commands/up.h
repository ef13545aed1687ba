#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/commands/job_plan.h"
#include "cli/local_cluster/interrupts.h"
#include "cli/report/console.h"
#include "cli/report/summary.h"

// `weir up`: a whole job on this machine, from the first process to the last.
namespace weir {

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

// The words of `weir up JOB [FLAGS] [-- PROGRAM ARGS]`. What follows -- is another program's, so CLI11 must
// not read it.
struct UpWords {
  int count = 0;                                    // of the words that come before --
  std::optional<std::vector<std::string>> program;  // those after it; nullopt: there is no --
};

// Any other command has all its words before --.
UpWords SplitOffProgram(int argc, char** argv);

// For a bad command line without --: if it is that of `up` and has a word too many, tells where -- belongs.
void HintAtDashes(const CLI::App& app, int argc, char** argv);

}  // namespace weir
