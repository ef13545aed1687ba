#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// How a process ended.
struct ProcessExit {
  int code = 0;    // what it gave to exit(); 0 where a signal ended it
  int signal = 0;  // the signal that ended it, or 0

  bool ok() const { return code == 0 && signal == 0; }
  // As a shell says it: the code, or 128 + the signal.
  int status() const { return signal != 0 ? 128 + signal : code; }
  // "exit code 78" or "signal 9 (Killed)".
  std::string ToString() const;
};

// A child process. It is killed (SIGKILL) when this process ends (PR_SET_PDEATHSIG) or this object is
// destroyed, and is reaped as soon as it ends. It has its own process group, so that a terminal's Ctrl-C
// reaches the parent alone, and no open file of the parent but its own input and output.
// Signals that the parent ignores are ignored in it, the others have their default effect, and those are
// blocked that were blocked in the parent at its start (MaskAtStart). Thread-safe.
class Subprocess {
 public:
  struct Options {
    std::vector<std::string> args;  // args[0] is the program, looked for on PATH if it has no '/'
    std::map<std::string, std::string> environment;  // on top of this process's own
    std::vector<std::string> remove_environment;     // variables that it must not see (TF_CONFIG, say)
    std::string working_directory;                   // empty: this process's
    // Standard input: a file descriptor of this process, which Start() duplicates; -1: /dev/null.
    int input = -1;

    // Standard output and standard error go together to at most one of these two; with neither they are
    // inherited.
    std::string output_file;  // appended to, made if it is not there
    // Each line without its line feed (a line over 64 KiB comes in pieces), from a thread of this object.
    std::function<void(absl::string_view line)> on_line;

    // Called once, after the last on_line and before Wait returns, from a thread of this object. Must not
    // destroy the object.
    std::function<void(const ProcessExit&)> on_exit;
  };

  // Fails if the program cannot be run (NotFound, PermissionDenied) or its output file cannot be opened.
  static absl::StatusOr<std::unique_ptr<Subprocess>> Start(Options options);
  // Kills the process (SIGKILL) if it is still there, and waits for it.
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const;
  // No effect once the process has ended, so another process that got its id is never hit.
  void Signal(int signal);
  // Waits for the end, all output included. nullopt: the process still runs at the deadline.
  std::optional<ProcessExit> Wait(std::chrono::steady_clock::time_point deadline);
  ProcessExit Wait();

 private:
  struct State;
  explicit Subprocess(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

struct CommandResult {
  ProcessExit exit;
  std::string output;  // standard output and standard error
};

// Runs a program to its end; the options must leave on_line and output_file unset. DeadlineExceeded (with the
// output so far): the program took longer than `limit` and was killed.
absl::StatusOr<CommandResult> RunCommand(Subprocess::Options options, std::chrono::milliseconds limit);

}  // namespace weir
