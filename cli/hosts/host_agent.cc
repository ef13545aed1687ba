#include "cli/hosts/host_agent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/hosts/host_message.h"
#include "cli/installation/installation.h"
#include "cli/installation/task_environment.h"
#include "cli/report/summary.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "common/program/exit_codes.h"
#include "common/protocol/handshake.h"
#include "common/system/process.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Message = std::vector<std::string>;
using std::chrono::steady_clock;

// `weir up` sends something every 2 s. Its ssh takes 20 s to give a connection up, so that the old tasks have
// ended when `weir up` starts others.
constexpr auto kSilence = std::chrono::seconds(15);
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kEndLimit = std::chrono::seconds(5);

// The direct children of all threads.
std::set<pid_t> Children() {
  std::set<pid_t> children;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child; file >> child;) children.insert(child);
  }
  return children;
}

// Orphans of its descendants come to this process (PR_SET_CHILD_SUBREAPER), so nothing that was started here
// is left, and nothing else is hit.
void KillDescendants() {
  const auto end = steady_clock::now() + kEndLimit;
  for (std::set<pid_t> children; !(children = Children()).empty() && steady_clock::now() < end;) {
    for (const pid_t child : children) kill(child, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

class HostAgent {
 public:
  int Run();

 private:
  void Listen();
  void Handle(const Message& message);
  absl::StatusOr<Binaries> Prepare(const Message& message);
  absl::Status Start(const Message& message);
  // Sends the files that tasks have made since the last call.
  void SendFiles();
  void Send(const Message& message) {
    MutexLock lock(mutex_);
    SendLocked(message);
  }
  void SendLocked(const Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::string folder_;
  Mutex mutex_;  // also of standard output: tasks' threads write to it
  std::set<std::string> awaited_ ABSL_GUARDED_BY(mutex_);  // files in folder_
  std::map<std::string, std::unique_ptr<Subprocess>> tasks_;
};

int HostAgent::Run() {
  // The connection's end comes on standard input.
  BlockSignals({SIGPIPE, SIGHUP, SIGINT, SIGTERM});
  // Outlives a killed `weir up` on this machine for long enough to clean up.
  prctl(PR_SET_PDEATHSIG, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const char* const tmp = std::getenv("TMPDIR");
  folder_ = absl::StrCat(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp", "/weir-host-XXXXXX");
  if (mkdtemp(folder_.data()) == nullptr) {
    Send({"refused",
          absl::StrCat("cannot make a folder for the job's files (", folder_, "): ", strerror(errno))});
    return kExitConfig;
  }
  const char* const connection = std::getenv("SSH_CONNECTION");
  Send({"hello", kVersion, folder_, connection == nullptr ? "" : connection});
  Listen();
  KillDescendants();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  // A thread may be stuck in a write to a connection that is gone.
  _exit(kExitOk);
}

void HostAgent::Listen() {
  std::string rest;
  std::vector<char> buffer(65536);
  for (auto heard = steady_clock::now(); steady_clock::now() - heard < kSilence; SendFiles()) {
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, static_cast<int>(kTick.count())) <= 0) continue;
    const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    heard = steady_clock::now();
    rest.append(buffer.data(), got);
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const auto message = DecodeMessage(absl::string_view(rest).substr(begin, end - begin));
      if (message.has_value()) Handle(*message);
    }
    rest.erase(0, begin);
  }
}

void HostAgent::Handle(const Message& message) {
  const std::string& kind = message[0];
  int number = 0;
  if (kind == "prepare" && message.size() >= 4) {
    const absl::StatusOr<Binaries> binaries = Prepare(message);
    if (binaries.ok()) return Send({"ready", binaries->ps_server, binaries->worker});
    Send({"refused", std::string(binaries.status().message())});
  } else if (kind == "start" && message.size() >= 2) {
    const absl::Status status = Start(message);
    if (!status.ok()) Send({"failed", message[1], std::string(status.message())});
  } else if (kind == "signal" && message.size() == 3 && absl::SimpleAtoi(message[2], &number)) {
    const auto task = tasks_.find(message[1]);
    if (task != tasks_.end()) task->second->Signal(number);
  }
}

absl::StatusOr<Binaries> HostAgent::Prepare(const Message& message) {
  const std::string& directory = message[1];
  std::error_code error;
  fs::current_path(directory, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat("the folder ", directory, ": ", error.message(),
                                            "; the tasks run there: make it, with the job's files, name a "
                                            "different one (--dir=DIR), or copy yours (--copy)"));
  }
  if (const fs::path shared = message[3]; !shared.empty() && !fs::exists(shared, error)) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.directory: ", shared.parent_path().string(),
                                                      " is not the folder that it is for `weir up`; servers "
                                                      "on hosts need one that all share at one path (NFS, "
                                                      "say), or object storage (s3://BUCKET/PREFIX)"));
  }
  for (size_t i = 4; i + 1 < message.size(); i += 2) {
    const std::string path = absl::StrCat(folder_, "/", message[i]);
    const mode_t before = umask(0077);  // for this user alone
    fs::create_directories(fs::path(path).parent_path(), error);
    const absl::Status written = WriteFileWhole(path, message[i + 1]);
    umask(before);
    WEIR_RETURN_IF_ERROR(written);
  }
  if (!message[2].empty()) WEIR_RETURN_IF_ERROR(CheckCanRun(message[2]));
  return FindBinaries("", /*with_worker=*/message[2].empty());
}

absl::Status HostAgent::Start(const Message& message) {
  const std::string& task = message[1];
  Subprocess::Options options;
  for (size_t i = 2; i + 1 < message.size(); i += 2) {
    const std::string& value = message[i + 1];
    int sharers = 0;
    if (message[i] == "arg") options.args.push_back(value);
    if (message[i] == "env") {
      const size_t equals = value.find('=');
      options.environment[value.substr(0, equals)] = value.substr(equals + 1);
    }
    if (message[i] == "sharers" && absl::SimpleAtoi(value, &sharers)) {
      SetProgramEnvironment(ThreadsOfShare(sharers), &options.environment);
    }
    if (message[i] == "file") {
      std::error_code ignored;
      fs::remove(fs::path(folder_) / value, ignored);  // of an earlier start
      MutexLock lock(mutex_);
      awaited_.insert(value);
    }
  }
  options.on_line = [this, task](absl::string_view line) {
    do {
      Send({"line", task, std::string(line.substr(0, kLongestPiece))});
      line.remove_prefix(std::min(line.size(), kLongestPiece));
    } while (!line.empty());
  };
  options.on_exit = [this, task](const ProcessExit& exit) {
    SendFiles();
    Send({"exit", task, absl::StrCat(exit.code), absl::StrCat(exit.signal)});
  };
  tasks_.erase(task);  // an earlier start, which has ended
  WEIR_ASSIGN_OR_RETURN(tasks_[task], Subprocess::Start(std::move(options)));
  return absl::OkStatus();
}

void HostAgent::SendFiles() {
  MutexLock lock(mutex_);
  for (auto name = awaited_.begin(); name != awaited_.end();) {
    const absl::StatusOr<std::string> content = ReadTextFile(absl::StrCat(folder_, "/", *name));
    if (!content.ok()) {
      ++name;
      continue;
    }
    for (size_t at = 0; at == 0 || at < content->size(); at += kLongestPiece) {
      const bool last = at + kLongestPiece >= content->size();
      SendLocked({"file", *name, content->substr(at, kLongestPiece), last ? "end" : "more"});
    }
    name = awaited_.erase(name);
  }
}

void HostAgent::SendLocked(const Message& message) {
  // Where the connection is gone, standard input says so, too.
  WriteAll(STDOUT_FILENO, EncodeMessage(message));
}

}  // namespace

int RunHostAgent() { return HostAgent().Run(); }

}  // namespace weir
