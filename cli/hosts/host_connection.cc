#include "cli/hosts/host_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/hosts/host_message.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/protocol/handshake.h"
#include "common/system/process.h"

namespace weir {
namespace {

using std::chrono::steady_clock;

constexpr auto kBeat = std::chrono::seconds(2);
constexpr auto kEndLimit = std::chrono::seconds(10);
constexpr size_t kKeptWords = 5;
// Exit codes of a shell and of ssh.
constexpr int kCannotRun = 126, kNoProgram = 127, kSshFailed = 255;

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

// Runs the agent. The login shell may be any; sh does the rest.
std::string AgentCommand(const std::string& weir) {
  if (!weir.empty()) return absl::StrCat("exec ", ShellQuoted(weir), " host-agent");
  return absl::StrCat(R"(exec sh -c 'if [ -x "$0" ]; then exec "$0" host-agent; fi; exec weir host-agent' )",
                      ShellQuoted(OwnPath()));
}

// Takes a SIGPIPE that waits, blocked, because of a write of this thread: it would end the program when it is
// no longer blocked.
void ForgetSignal() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now = {};
  sigtimedwait(&pipe, nullptr, &now);
}

// What to do if the agent did not begin.
std::string HintAt(const ProcessExit& exit, const HostConnection::Options& options) {
  if (exit.code == kCannotRun || exit.code == kNoProgram) {
    return "is Weir installed there? Name the program there with --weir=PATH";
  }
  if (exit.code == kSshFailed) {
    return absl::StrCat("try `", options.access.ssh, " ", options.host.name,
                        " true`, which must work without a password or a question");
  }
  return absl::StrCat("is weir there older? This one has version ", kVersion,
                      "; install it there, too, or name it with --weir=PATH");
}

}  // namespace

std::string ShellQuoted(absl::string_view text) {
  constexpr absl::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == absl::string_view::npos) return std::string(text);
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", R"('\'')"}}), "'");
}

std::string ShellCommand(const std::vector<std::string>& words) {
  return absl::StrJoin(
      words, " ", [](std::string* out, const std::string& word) { absl::StrAppend(out, ShellQuoted(word)); });
}

std::vector<std::string> CommandOnHost(const Host& host, const std::string& ssh, const std::string& command) {
  if (host.is_here()) return {"sh", "-c", command};
  std::vector<std::string> args = absl::StrSplit(ssh, ' ', absl::SkipEmpty());
  // Nothing asks at a terminal. A connection that is cut is given up after 20 s.
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=4"}) {
    args.insert(args.end(), {"-o", option});
  }
  args.insert(args.end(), {"-T", host.name, command});
  return args;
}

absl::StatusOr<std::unique_ptr<HostConnection>> HostConnection::Open(Options options) {
  std::unique_ptr<HostConnection> connection(new HostConnection(std::move(options)));
  const auto& [host, access, on_file] = connection->options_;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  const UniqueFd read_end(ends[0]);
  connection->input_ = UniqueFd(ends[1]);
  // A write to an ssh that has ended is no reason to end.
  BlockSignals({SIGPIPE});
  Subprocess::Options process;
  process.args = CommandOnHost(host, access.ssh, AgentCommand(host.is_here() ? OwnPath() : access.weir));
  process.input = read_end.get();
  process.on_line = [c = connection.get()](absl::string_view line) { c->OnLine(line); };
  process.on_exit = [c = connection.get()](const ProcessExit& exit) { c->OnEnd(exit); };
  WEIR_ASSIGN_OR_RETURN(connection->process_, Subprocess::Start(std::move(process)));
  return connection;
}

HostConnection::~HostConnection() {
  Close();
  // Without an agent there is nothing to wait for.
  const auto greeted = [this] {
    MutexLock lock(mutex_);
    return greeted_;
  };
  if (process_ != nullptr && greeted()) process_->Wait(steady_clock::now() + kEndLimit);
}

absl::StatusOr<std::vector<std::string>> HostConnection::Await(const std::string& kind,
                                                               steady_clock::time_point deadline) {
  const auto failed = [this](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("host ", options_.host.name, ": ", what));
  };
  MutexLock lock(mutex_);
  while (!answer_.has_value() && lost_.empty()) {
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    return absl::DeadlineExceededError(
        failed(absl::StrCat("it does not answer", words_.empty() ? "" : ": ", absl::StrJoin(words_, "; "),
                            "; does `", options_.access.ssh, " ", options_.host.name, " true` end at once?"))
            .message());
  }
  if (!answer_.has_value()) return failed(lost_);
  std::vector<std::string> answer = *std::exchange(answer_, std::nullopt);
  if (answer[0] == "refused" && answer.size() == 2) return failed(answer[1]);
  if (answer[0] != kind) return failed(absl::StrCat("answered '", answer[0], "' instead of '", kind, "'"));
  return answer;
}

absl::Status HostConnection::AwaitHello(steady_clock::time_point deadline) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::string> hello, Await("hello", deadline));
  if (hello.size() != 4 || hello[1] != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("host ", options_.host.name, ": weir there has version ",
                     hello.size() > 1 ? Printable(hello[1]) : "?", ", and this one ", kVersion,
                     "; install the same version there, or name it with --weir=PATH"));
  }
  folder_ = hello[2];
  // "CLIENT PORT SERVER PORT"
  const std::vector<std::string> ends = absl::StrSplit(hello[3], ' ');
  if (ends.size() == 4) {
    our_address_ = ends[0];
    its_address_ = ends[2];
  }
  return absl::OkStatus();
}

void HostConnection::Prepare(const HostNeeds& needs) {
  std::vector<std::string> message = {"prepare", options_.access.directory, needs.program, needs.shared};
  for (const auto& [name, content] : needs.files) message.insert(message.end(), {name, content});
  Send(message);
}

absl::Status HostConnection::AwaitReady(steady_clock::time_point deadline) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::string> ready, Await("ready", deadline));
  binaries_ = {ready.at(1), ready.at(2)};
  return absl::OkStatus();
}

absl::Status HostConnection::Start(const std::string& name, Task task) {
  std::vector<std::string> message = {"start", name};
  const auto add = [&message](const char* kind, const std::string& value) {
    message.insert(message.end(), {kind, value});
  };
  for (const std::string& file : task.files) add("file", file);
  for (const std::string& arg : task.args) add("arg", arg);
  if (task.sharers > 0) add("sharers", absl::StrCat(task.sharers));
  for (const auto& [variable, value] : task.environment) add("env", absl::StrCat(variable, "=", value));
  {
    MutexLock lock(mutex_);
    if (!lost_.empty()) return absl::UnavailableError(absl::StrCat("host ", options_.host.name, ": ", lost_));
    tasks_[name] = std::move(task);
  }
  Send(message);
  return absl::OkStatus();
}

void HostConnection::Signal(const std::string& task, int signal) {
  Send({"signal", task, absl::StrCat(signal)});
}

void HostConnection::Beat() {
  if (steady_clock::now() - sent_ >= kBeat) Send({"beat"});
}

bool HostConnection::is_lost() const {
  MutexLock lock(mutex_);
  return !lost_.empty();
}

void HostConnection::Close() { input_.Close(); }

void HostConnection::Send(const std::vector<std::string>& message) {
  sent_ = steady_clock::now();
  // Else ssh has ended: OnEnd() tells.
  if (!WriteAll(input_.get(), EncodeMessage(message))) ForgetSignal();
}

void HostConnection::OnLine(absl::string_view line) {
  std::optional<std::vector<std::string>> message = DecodeMessage(line);
  if (message.has_value()) return OnMessage(*std::move(message));
  MutexLock lock(mutex_);
  words_.push_back(Printable(absl::StripTrailingAsciiWhitespace(line)));
  if (words_.size() > kKeptWords) words_.erase(words_.begin());
}

void HostConnection::OnMessage(std::vector<std::string> message) {
  const std::string& kind = message[0];
  if (kind == "file" && message.size() == 4) {
    std::string& content = pieces_[message[1]];
    absl::StrAppend(&content, message[2]);
    if (message[3] == "more") return;
    options_.on_file(message[1], content);
    pieces_.erase(message[1]);
    return;
  }
  const bool ends = kind == "exit" || kind == "failed";
  if (kind != "line" && !ends) {
    MutexLock lock(mutex_);
    if (kind == "hello") {
      greeted_ = true;
      words_.clear();  // what a login prints explains no later end
    }
    answer_ = std::move(message);
    return changed_.NotifyAll();
  }
  Task task;
  {
    MutexLock lock(mutex_);
    const auto found = message.size() < 3 ? tasks_.end() : tasks_.find(message[1]);
    if (found == tasks_.end()) return;
    task = found->second;
    if (ends) tasks_.erase(found);
  }
  ProcessExit exit;
  if (kind != "exit") task.on_line(message[2]);
  if (kind == "failed") exit.code = kNoProgram;
  if (kind == "exit" && message.size() == 4) {
    if (!absl::SimpleAtoi(message[2], &exit.code) || !absl::SimpleAtoi(message[3], &exit.signal))
      exit.code = kNoProgram;
  }
  if (ends) task.on_exit(exit, "");
}

void HostConnection::OnEnd(const ProcessExit& exit) {
  std::map<std::string, Task> left;
  std::string lost;
  {
    MutexLock lock(mutex_);
    const char* const what = options_.host.is_here() ? "the agent" : "ssh";
    lost_ = absl::StrCat(what, " ended with ", exit.ToString(), words_.empty() ? "" : ": ",
                         absl::StrJoin(words_, "; "));
    if (!greeted_) absl::StrAppend(&lost_, "; ", HintAt(exit, options_));
    lost = lost_;
    left.swap(tasks_);
    changed_.NotifyAll();
  }
  ProcessExit killed;
  killed.signal = SIGKILL;
  for (auto& [name, task] : left) {
    task.on_line(absl::StrCat("the connection to ", options_.host.name, " is lost: ", lost));
    task.on_exit(killed, lost);
  }
}

}  // namespace weir
