#include "common/system/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/system/process.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

constexpr size_t kLongestLine = 65536;

absl::Status MakePipe(UniqueFd& read_end, UniqueFd& write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  read_end = UniqueFd(ends[0]);
  write_end = UniqueFd(ends[1]);
  return absl::OkStatus();
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (auto& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// This process's environment with the options' changes, as "NAME=value".
std::vector<std::string> Environment(const Subprocess::Options& options) {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (const char* equals = strchr(*entry, '=')) all[std::string(*entry, equals - *entry)] = equals + 1;
  }
  for (const auto& name : options.remove_environment) all.erase(name);
  for (const auto& [name, value] : options.environment) all[name] = value;
  std::vector<std::string> out;
  for (const auto& [name, value] : all) out.push_back(absl::StrCat(name, "=", value));
  return out;
}

// What the child does between fork and exec: system calls only, since another thread may have held any lock.
struct ChildPlan {
  pid_t parent;
  char* const* args;
  char* const* environment;
  const char* directory;  // or null
  int input;
  int output;  // or -1
  int failure_pipe;
  sigset_t mask;
};

[[noreturn]] void BecomeChild(const ChildPlan& plan) {
  const auto fail = [&] {
    const int error = errno;
    // Nothing is left to do if the parent cannot be told.
    if (write(plan.failure_pipe, &error, sizeof(error)) < 0) _exit(127);
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  if (getppid() != plan.parent) _exit(127);  // the parent died before the line above
  setpgid(0, 0);
  // No handler of the parent runs here.
  for (int s = 1; s < NSIG; ++s) {
    struct sigaction action;
    if (sigaction(s, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) signal(s, SIG_DFL);
  }
  sigprocmask(SIG_SETMASK, &plan.mask, nullptr);
  if (dup2(plan.input, STDIN_FILENO) < 0) fail();
  if (plan.output >= 0 && (dup2(plan.output, STDOUT_FILENO) < 0 || dup2(plan.output, STDERR_FILENO) < 0))
    fail();
  if (plan.directory != nullptr && chdir(plan.directory) != 0) fail();
  // Closes files that a library opened without O_CLOEXEC. Kernels before 5.11 cannot; there they stay open.
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  execvpe(plan.args[0], plan.args, plan.environment);
  fail();
  _exit(127);
}

// Calls on_line for each line that arrives on `from`, until its end. Once `stop` is readable, only until
// `from` is empty, because a grandchild may hold it open for ever.
void ReadLines(int from, int stop, const std::function<void(absl::string_view)>& on_line) {
  std::string line;
  std::array<char, 16384> buffer;
  bool stopping = false;
  while (true) {
    pollfd fds[2] = {{from, POLLIN, 0}, {stop, POLLIN, 0}};
    if (poll(fds, stopping ? 1 : 2, stopping ? 0 : -1) < 0 && errno != EINTR) break;
    if (fds[0].revents == 0) {
      if (stopping) break;
      stopping = fds[1].revents != 0;
      continue;
    }
    const ssize_t got = read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (ssize_t i = 0; i < got; ++i) {
      if (buffer[i] != '\n') line.push_back(buffer[i]);
      if (buffer[i] == '\n' || line.size() == kLongestLine) {
        on_line(line);
        line.clear();
      }
    }
  }
  if (!line.empty()) on_line(line);
}

}  // namespace

std::string ProcessExit::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", code);
}

// The owner thread forks, waits for the end and reaps. The parent-death signal comes when the forking
// *thread* ends, so that thread must outlive the child. A second thread reads the output.
struct Subprocess::State {
  Options options;
  UniqueFd output_read, output_write;  // read end: with on_line only
  UniqueFd input;

  Mutex mutex;
  CondVar changed;
  bool started ABSL_GUARDED_BY(mutex) = false;  // start_status is known
  absl::Status start_status ABSL_GUARDED_BY(mutex);
  pid_t pid ABSL_GUARDED_BY(mutex) = -1;
  bool reaped ABSL_GUARDED_BY(mutex) = false;
  std::optional<ProcessExit> exit ABSL_GUARDED_BY(mutex);

  std::thread owner;

  absl::Status Prepare();
  absl::StatusOr<pid_t> Fork();
  void Own();
};

absl::Status Subprocess::State::Prepare() {
  if (options.args.empty())
    return absl::InvalidArgumentError("no program to run: the argument list is empty");
  if (options.on_line && !options.output_file.empty()) {
    return absl::InvalidArgumentError("output goes to a file or to a function, not to both");
  }
  input = UniqueFd(options.input < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC)
                                     : fcntl(options.input, F_DUPFD_CLOEXEC, 0));
  if (input.get() < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the input of ", options.args[0]));
  }
  if (options.on_line) return MakePipe(output_read, output_write);
  if (!options.output_file.empty()) {
    output_write =
        UniqueFd(open(options.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (output_write.get() < 0) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot open ", options.output_file, " for the output of ", options.args[0]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<pid_t> Subprocess::State::Fork() {
  UniqueFd failure_read, failure_write;
  if (auto status = MakePipe(failure_read, failure_write); !status.ok()) return status;
  std::vector<std::string> environment = Environment(options);
  const auto args = Pointers(options.args);
  const auto variables = Pointers(environment);
  const ChildPlan plan = {getpid(),
                          args.data(),
                          variables.data(),
                          options.working_directory.empty() ? nullptr : options.working_directory.c_str(),
                          input.get(),
                          output_write.get(),
                          failure_write.get(),
                          MaskAtStart()};
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (child == 0) BecomeChild(plan);

  failure_write.Close();
  output_write.Close();
  input.Close();
  int error = 0;
  ssize_t got;
  do {
    got = read(failure_read.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == 0) return child;  // exec closed the pipe
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return absl::ErrnoToStatus(
      error, absl::StrCat("cannot run ", options.args[0],
                          plan.directory == nullptr ? "" : absl::StrCat(" in ", options.working_directory)));
}

void Subprocess::State::Own() {
  UniqueFd stop;
  std::thread reader;
  absl::StatusOr<pid_t> child = 0;
  if (options.on_line) {
    stop = UniqueFd(eventfd(0, EFD_CLOEXEC));
    absl::StatusOr<std::thread> made =
        MakeThread(absl::StrCat("read the output of ", options.args[0]),
                   [this, fd = stop.get()] { ReadLines(output_read.get(), fd, options.on_line); });
    if (made.ok()) {
      reader = *std::move(made);
    } else {
      child = made.status();
    }
  }
  if (child.ok()) child = Fork();
  const auto end_reader = [&] {
    if (!reader.joinable()) return;
    eventfd_write(stop.get(), 1);
    reader.join();
  };
  if (!child.ok()) end_reader();
  {
    MutexLock lock(mutex);
    started = true;
    start_status = child.status();
    if (child.ok()) pid = *child;
    changed.NotifyAll();
  }
  if (!child.ok()) return;

  siginfo_t info = {};
  // Not reaped yet: while the child is a zombie, its id is not given to another process.
  while (waitid(P_PID, *child, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  end_reader();
  ProcessExit result;
  (info.si_code == CLD_EXITED ? result.code : result.signal) = info.si_status;
  {
    MutexLock lock(mutex);
    while (waitpid(*child, nullptr, 0) < 0 && errno == EINTR) {
    }
    reaped = true;
  }
  if (options.on_exit) options.on_exit(result);
  MutexLock lock(mutex);
  exit = result;
  changed.NotifyAll();
}

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(Options options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  if (auto status = state->Prepare(); !status.ok()) return status;
  State* s = state.get();
  MaskAtStart();  // before the owner, which might inherit another one
  absl::StatusOr<std::thread> owner =
      MakeThread(absl::StrCat("start ", s->options.args[0]), [s] { s->Own(); });
  if (!owner.ok()) return owner.status();
  s->owner = *std::move(owner);
  absl::Status status;
  {
    MutexLock lock(s->mutex);
    while (!s->started) s->changed.Wait(s->mutex);
    status = s->start_status;
  }
  if (!status.ok()) {
    s->owner.join();
    return status;
  }
  return std::unique_ptr<Subprocess>(new Subprocess(std::move(state)));
}

Subprocess::Subprocess(std::unique_ptr<State> state) : state_(std::move(state)) {}

Subprocess::~Subprocess() {
  Signal(SIGKILL);
  state_->owner.join();
}

pid_t Subprocess::pid() const {
  MutexLock lock(state_->mutex);
  return state_->pid;
}

void Subprocess::Signal(int signal) {
  MutexLock lock(state_->mutex);
  if (!state_->reaped) kill(state_->pid, signal);
}

std::optional<ProcessExit> Subprocess::Wait(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(state_->mutex);
  while (!state_->exit.has_value()) {
    if (!state_->changed.WaitUntil(state_->mutex, deadline)) break;
  }
  return state_->exit;
}

ProcessExit Subprocess::Wait() {
  MutexLock lock(state_->mutex);
  while (!state_->exit.has_value()) state_->changed.Wait(state_->mutex);
  return *state_->exit;
}

absl::StatusOr<CommandResult> RunCommand(Subprocess::Options options, std::chrono::milliseconds limit) {
  CommandResult result;
  options.on_line = [&](absl::string_view line) { absl::StrAppend(&result.output, line, "\n"); };
  const std::string program = options.args.empty() ? "" : options.args[0];
  auto process = Subprocess::Start(std::move(options));
  if (!process.ok()) return process.status();
  const auto exit = (*process)->Wait(std::chrono::steady_clock::now() + limit);
  if (!exit.has_value()) {
    process->reset();  // from here on no thread writes to the output
    return absl::DeadlineExceededError(absl::StrCat(program, " still ran after ", limit.count(),
                                                    " ms and was killed; its output:\n", result.output));
  }
  result.exit = *exit;
  return result;
}

}  // namespace weir
