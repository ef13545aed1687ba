#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/system/subprocess.h"

// Decides which of the ended tasks is why a job failed, and how to say so. Pure functions.
namespace weir {

// The end of one task of a local cluster.
struct TaskExit {
  std::string task;  // "worker:1"
  ProcessExit exit;
  double seconds = 0;      // since the task was started
  bool was_ended = false;  // by `weir` itself, which had decided to end the job
  std::vector<std::string> last_lines;
  int restarts = 0;        // earlier incarnations of the task
  bool restarted = false;  // another incarnation has followed
  bool skipped = false;   // a worker whose gradient was not finite, which consistency.on_nonfinite says to go
                          // on without
  bool job_done = false;  // ps:0 had ended well, so the job's result was there
};

enum class ExitMeaning {
  kExpected,    // done, or ended by us
  kSurvivable,  // the job goes on, or was done: the task was started again, or skipped, or it is a worker or
                // evaluator that was ended from outside, or that lost the other tasks
  kFatal,       // ends the job
};
ExitMeaning MeaningOf(const TaskExit& exit);

// Returns whether starting the task again may help: codes up to 127 are permanent
// (common/program/exit_codes.h).
bool IsWorthRestart(const TaskExit& exit);

// Whether the task may only have heard of another one's failure, whose exit may still come: its code says
// that it lost a peer, or it is no worker and ends because training cannot go on, which a worker finds.
bool MayHaveHeard(const TaskExit& exit);

// The index of the exit that explains the failure of a job; `exits` are in the order in which they were seen.
// 138 says that another task was lost, so it is a consequence if there is any other fatal exit, even one
// after which the task was started again (then the last such exit: the job had gone on after those before
// it). A worker's own fault comes before a server's code 70 (MayHaveHeard). A survivable exit explains a
// failure only if there is no fatal one. nullopt: nothing failed.
std::optional<size_t> FirstCause(const std::vector<TaskExit>& exits);

// "worker:1 exited with 70 (a fault of its own, or training that cannot go on) after 3.20 s"; "ps:0 was
// killed by signal 9 (Killed) after 12.0 s", and then perhaps ", started again 2 times before".
std::string DescribeExit(const TaskExit& exit);
// What to do about it; "" if nothing can be said.
std::string HintFor(const TaskExit& exit);

// The exit code of `weir up` for this cause: the task's own code, or 138 if a signal ended it.
int ExitCodeFor(const TaskExit& cause);

}  // namespace weir
