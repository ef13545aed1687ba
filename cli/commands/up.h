#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "cli/commands/job_plan.h"
#include "cli/commands/job_supervisor.h"
#include "cli/local_cluster/job_cluster.h"
#include "cli/report/console.h"
#include "cli/report/summary.h"

// A whole job, from the first process to the last: `weir up` and other commands that run jobs.
namespace weir {

struct UpResult {
  // 0; 78: the config is bad; 130, 143: ended by Ctrl-C, SIGTERM; else the code of the task that is the first
  // cause, or 138 if a signal ended that task.
  int exit_code = 0;
  int signal = 0;  // that ended the job from outside
  std::string job_name;
  std::string log_dir;                // "": the logs are gone
  std::optional<JobSummary> summary;  // set if the job is done
};

// Makes the cluster on which a job runs. Cancelled: a signal came (JobCluster::Options::stop_fd).
using MakeCluster = std::function<absl::StatusOr<std::unique_ptr<JobCluster>>(const JobPlan& plan)>;

// Runs the job to its end, and leaves no process behind. Shows the events on the console; the caller shows
// the result. If a worker is killed from outside, reports that, and the job continues. If a server ends that
// can be started again and finds a checkpoint, the job continues, too. On a signal, a job with checkpoints
// saves one first. A new job is refused if its folder holds checkpoints of another job.
UpResult RunJob(const UpOptions& options, Console& console, Interrupts& interrupts, const MakeCluster& make);
// On this machine or on the hosts of the options.
UpResult RunJob(const UpOptions& options, Console& console, Interrupts& interrupts);

// Prints the summary, if there is one, and returns the exit code.
int ShowResult(const UpResult& result);

// Adds the flags of `weir up` that say how tasks run on this machine.
void AddRunFlags(CLI::App* command, UpOptions* options);

// Adds the flags of a command that runs a job: the config, its tasks, and where it begins.
void AddJobFlags(CLI::App* command, UpOptions* options);

// The words of `weir up JOB [FLAGS] [-- PROGRAM ARGS]` and of other commands that take a program. CLI11 must
// not read the words after --.
struct CommandWords {
  int count = 0;                                    // of the words that come before --
  std::optional<std::vector<std::string>> program;  // the words after --; nullopt: there is no --
};

// Splits only the words of these commands: -- is not special to others.
CommandWords SplitOffProgram(int argc, char** argv);

// Called for a bad command line without --. If it is such a command with a word too many, prints where --
// belongs.
void HintAtDashes(const CLI::App& app, int argc, char** argv);

}  // namespace weir
