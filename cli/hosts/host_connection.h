#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/hosts/host_list.h"
#include "cli/installation/installation.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"

namespace weir {

// How `weir up` reaches its hosts.
struct HostAccess {
  std::string ssh = "ssh";  // with flags, separated by blanks
  std::string weir;         // the program there; "": at this one's path, or where that is not, on PATH
  std::string directory;    // where tasks run; relative to the home folder
};

// All that tasks need on their host, besides Weir.
struct HostNeeds {
  std::string program = "";  // the user's; "": none
  std::string shared = "";   // a file that is seen there if a folder is the one of `weir up`; "": none
  std::vector<std::pair<std::string, std::string>> files = {};  // names in the agent's folder, and contents
};

// As one word for a shell.
std::string ShellQuoted(absl::string_view text);
// As one command for a shell.
std::string ShellCommand(const std::vector<std::string>& words);
// The arguments that run a command of a shell on the host.
std::vector<std::string> CommandOnHost(const Host& host, const std::string& ssh, const std::string& command);

// One ssh to a host, with the agent (RunHostAgent) at its other end, which runs tasks there. When the
// connection ends, in whichever way, the agent kills the tasks. One thread uses the object.
class HostConnection {
 public:
  struct Options {
    Host host;
    HostAccess access;
    // Called with each file that a task has made (Start), from a thread of this object.
    std::function<void(const std::string& name, const std::string& content)> on_file;
  };
  // Does not wait for the host.
  static absl::StatusOr<std::unique_ptr<HostConnection>> Open(Options options);
  // Ends the tasks there, and waits for that, at most 10 s.
  ~HostConnection();
  HostConnection(const HostConnection&) = delete;
  HostConnection& operator=(const HostConnection&) = delete;

  // Wait until `deadline`. Errors name the host, what was seen and what to do.
  // The agent answers, and is of this version.
  absl::Status AwaitHello(std::chrono::steady_clock::time_point deadline);
  // Puts the files, for this user alone, into folder(), and checks that the rest is there.
  void Prepare(const HostNeeds& needs);
  absl::Status AwaitReady(std::chrono::steady_clock::time_point deadline);

  // As the host has said.
  const std::string& folder() const { return folder_; }
  const Binaries& binaries() const { return binaries_; }
  // The host's address, and this machine's, of the connection; "": there is no ssh in between.
  const std::string& its_address() const { return its_address_; }
  const std::string& our_address() const { return our_address_; }

  // A task of a host. The functions are called from a thread of the connection, on_exit last and once.
  struct Task {
    std::vector<std::string> args;
    std::map<std::string, std::string> environment;
    int sharers = 0;                 // of SetProgramEnvironment(); 0: the program is Weir's
    std::vector<std::string> files;  // in folder(): the task will write them
    std::function<void(absl::string_view line)> on_line;
    // `lost`: why the connection has ended, and with it the task (SIGKILL); "": the task ended by itself.
    std::function<void(const ProcessExit&, const std::string& lost)> on_exit;
  };
  // Unavailable: the connection has ended.
  absl::Status Start(const std::string& name, Task task);
  void Signal(const std::string& task, int signal);
  // Call it every second or so: an agent that hears nothing for long takes the connection for lost.
  void Beat();
  bool is_lost() const;
  // Tells the agent to end, and does not wait.
  void Close();

 private:
  explicit HostConnection(Options options) : options_(std::move(options)) {}

  void Send(const std::vector<std::string>& message);
  void OnLine(absl::string_view line);
  void OnMessage(std::vector<std::string> message);
  void OnEnd(const ProcessExit& exit);
  // Waits for the answer to a request, which must be of this kind.
  absl::StatusOr<std::vector<std::string>> Await(const std::string& kind,
                                                 std::chrono::steady_clock::time_point deadline);

  const Options options_;
  std::string folder_, its_address_, our_address_;
  Binaries binaries_;
  UniqueFd input_;  // the agent's, to write to
  std::chrono::steady_clock::time_point sent_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::vector<std::string>> answer_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> pieces_;  // of files; of the thread that reads
  std::vector<std::string> words_
      ABSL_GUARDED_BY(mutex_);  // the last lines that are no messages, such as ssh's
  std::string lost_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Subprocess> process_;  // last: its threads use what is above
};

}  // namespace weir
