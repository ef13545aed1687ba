#pragma once

#include <signal.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/commands/job_plan.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/local_cluster/job_cluster.h"
#include "cli/report/console.h"
#include "cli/report/summary.h"

namespace weir {

// Blocks signals, by default SIGINT, SIGTERM and SIGHUP (the terminal is gone), so that a program can wait
// for them with poll. A signal that is ignored, such as SIGHUP under nohup, stays ignored. Make the object in
// main before any other thread, so that all threads inherit the blocked signals. There is one object at a
// time.
class Interrupts {
 public:
  explicit Interrupts(std::initializer_list<int> signals = {SIGINT, SIGTERM, SIGHUP});
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable while a signal is pending; for poll.
  int fd() const { return fd_; }
  // Returns and removes the next pending signal; nullopt: there is none.
  std::optional<int> Next();

 private:
  sigset_t before_;
  int fd_;
};

// How a job came to its end.
struct JobEnd {
  std::optional<int> failure;  // the exit code that its cause asks for; nullopt: the job did not fail
  int signal = 0;              // the signal that ended the job from outside
  bool done = false;           // ps:0 ended well, so the job's result is there
  std::vector<TaskExit> exits;
};

// Starts the tasks of a job, and returns when the last task has ended. `cluster` runs the processes; this
// function decides what follows from each event. It starts tasks again, continues without some, and ends the
// job on a signal or a failure. Shows the events on the console, and the cause of a failure.
JobEnd SuperviseJob(const JobPlan& plan, JobCluster& cluster, Console& console, Interrupts& interrupts);

// Reads the summary that ps:0 has left in a file, and adds how the tasks ended and the time since `start`.
absl::StatusOr<JobSummary> ReadJobSummary(const std::string& path, const std::vector<TaskExit>& exits,
                                          absl::Time start);

// Returns the first exit of a worker that ended well (`ok`), or that did not; nullptr: there is none.
const TaskExit* FindWorker(const std::vector<TaskExit>& exits, bool ok);

}  // namespace weir
