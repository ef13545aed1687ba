#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/job_plan.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/local_cluster/interrupts.h"
#include "cli/local_cluster/local_cluster.h"
#include "cli/report/console.h"

namespace weir {

// How a job came to its end.
struct JobEnd {
  std::optional<int> failure;  // the exit code that its cause asks for; nullopt: the job did not fail
  int signal = 0;              // the signal that ended the job from outside
  std::vector<TaskExit> exits;
  std::map<std::string, int> restarts;  // by task
};

// Starts the tasks of a job, and returns when the last task has ended. `cluster` runs the processes; this
// function decides what follows from each event. It starts tasks again, continues without some, and ends the
// job on a signal or a failure. Shows the events on the console, and the cause of a failure.
JobEnd SuperviseJob(const JobPlan& plan, LocalCluster& cluster, Console& console, Interrupts& interrupts);

// Returns the first exit of a worker that ended well (`ok`), or that did not; nullptr: there is none.
const TaskExit* FindWorker(const std::vector<TaskExit>& exits, bool ok);

}  // namespace weir
