#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/system/subprocess.h"

// Finds the task whose end is the cause of a job's failure, and describes it. Pure functions.
namespace weir {

// The end of one task of a local cluster.
struct TaskExit {
  std::string task;       // "worker:1"
  std::string host = "";  // the name of the task's host; "": the job has no list of hosts
  ProcessExit exit;
  std::string lost = "";  // why the connection to the task's host ended, and the task with it; "": it did not
  double seconds = 0;     // since the task was started
  bool was_ended = false;  // by `weir` itself, which had decided to end the job
  std::vector<std::string> last_lines;
  int restarts = 0;        // earlier incarnations of the task
  bool restarted = false;  // another incarnation has followed
  bool skipped = false;    // a worker without which the job continues, since its gradient was not finite
  bool job_done = false;   // ps:0 had ended well, so the job's result was there
};

enum class ExitMeaning {
  kExpected,    // done, or ended by us
  kSurvivable,  // the job continues, or was done: the task was started again, or skipped, or it is a worker
                // or evaluator that was ended from outside, or that lost the other tasks
  kFatal,       // ends the job
};
ExitMeaning MeaningOf(const TaskExit& exit);

// Returns whether starting the task again may help: codes up to 127 are permanent
// (common/program/exit_codes.h).
bool IsWorthRestart(const TaskExit& exit);

// Returns whether the task may have ended only because another task failed, whose exit may still come. This
// is so if the exit code says that the task lost a peer. It is also so if the task is no worker and the code
// says that training cannot continue, which a worker finds first.
bool MayHaveHeard(const TaskExit& exit);

// Returns the index of the exit that explains the failure of a job; nullopt: nothing failed. `exits` are in
// the order in which they were seen. Code 138 says that another task was lost, so this exit is a consequence
// if any other exit is fatal, even one whose task was started again. Of exits whose tasks were started again,
// the last one explains the failure, since the job continued after the others. A worker's own fault comes
// before a server's code 70 (MayHaveHeard). A survivable exit explains a failure only if no exit is fatal.
std::optional<size_t> FirstCause(const std::vector<TaskExit>& exits);

// "worker:1"; of a job with a list of hosts "worker:1 on b".
std::string TaskAndHost(const TaskExit& exit);
// "worker:1 on b exited with 138 (a peer was lost) after 3.20 s"; "ps:0 was killed by signal 9 (Killed)
// after 12.0 s, started again 2 times before".
std::string DescribeExit(const TaskExit& exit);
// Returns what to do about the exit; "" if there is no advice.
std::string HintFor(const TaskExit& exit);

// Returns the exit code of `weir up` for this cause: the task's own code, or 138 if a signal ended the task.
int ExitCodeFor(const TaskExit& cause);

}  // namespace weir
