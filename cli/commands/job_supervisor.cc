#include "cli/commands/job_supervisor.h"

#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/format.h"
#include "cli/report/status_text.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "common/program/exit_codes.h"
#include "common/system/clock.h"
#include "common/system/process.h"

namespace weir {
namespace {

// From the start of servers or workers to the report of each of them.
constexpr absl::Duration kStartDeadline = absl::Seconds(30);
constexpr absl::Duration kStartPoll = absl::Milliseconds(20);
constexpr absl::Duration kStatusPoll = absl::Milliseconds(250);
constexpr absl::Duration kStatusDeadline = absl::Milliseconds(250);
// Instead of Traits::settle, if all tasks that have ended may have ended because of another task's failure
// (MayHaveHeard). The failed task may take longer to end, such as the interpreter of a script that raised an
// exception. On a busy machine 3 s were too few for a script with PyTorch.
constexpr absl::Duration kSettleOfLoss = absl::Seconds(10);
// From SIGTERM to SIGKILL, if a checkpoint is taken first.
constexpr absl::Duration kSaveDeadline = absl::Seconds(60);
// When all tasks of one side are done, how long the other side may still take. Servers also wait for the
// lease of a worker that fell silent.
constexpr absl::Duration kLinger = absl::Seconds(30);
// By then ps:0 has said whether it waits for a task, even on a busy machine.
constexpr absl::Duration kTellsStart = absl::Seconds(10);
// When the job is done, how long a task that has not noticed may still take.
constexpr absl::Duration kStragglers = absl::Seconds(5);

struct Failure {
  std::string text;
  int exit_code = kExitInternal;
  std::string task = "";  // the task whose last lines tell more; "": none
  std::string hint = "";
  std::vector<std::string> last_lines = {};  // of the task; empty: its newest lines
};

absl::Time Now() { return Clock::Real().Now(); }

std::string Names(const std::vector<std::string>& names) { return absl::StrJoin(names, ", "); }

class Supervisor {
 public:
  Supervisor(const JobPlan& plan, JobCluster& cluster, Console& console, Interrupts& interrupts)
      : plan_(plan), cluster_(cluster), console_(console), interrupts_(interrupts) {}

  JobEnd Run();

 private:
  void StartWorkersWhenReady();
  void OnExits(std::vector<TaskExit> exits);
  bool MayRestart(const TaskExit& exit) const;
  void Restart(TaskExit* exit);
  void TellRestart(const TaskExit& exit);
  void OnSignal(int signal);
  void Warn();
  void CheckStart();
  void FailWithoutMembers();
  void CheckWorkers();
  void EndStragglers(absl::Duration quiet);
  void CheckLinger();
  void ReportFailureWhenSettled();
  void PollStatus();
  void Fail(Failure failure);
  void End();
  Failure CauseOfFailure() const;
  // From now on lines of tasks go to their logs alone, unless all lines are asked for.
  void Mute();

  const JobPlan& plan_;
  JobCluster& cluster_;
  Console& console_;
  Interrupts& interrupts_;
  const absl::Duration settle_ = cluster_.traits().settle;
  const absl::Time start_ = Now();
  std::unique_ptr<StatusClient> status_;

  absl::Duration digests_;  // the longest TimeForDigests() so far
  bool workers_started_ = false;
  absl::Time step_started_ = start_;   // of the servers, then of the workers
  absl::Time waits_ = start_;          // when ps:0 last said that it waits for workers or servers
  absl::Time begun_by_ = start_;       // by when the job has begun, as far as is known
  std::vector<std::string> warnings_;  // of tasks that the job does without, if it has begun
  bool some_worker_done_ = false;
  bool coordinator_done_ = false;
  absl::Time done_at_;  // of ps:0's end
  bool ended_stragglers_ = false;
  std::vector<TaskExit> exits_;
  std::map<std::string, absl::Time> restarted_at_;  // the last time, by task
  absl::Time last_exit_ = start_;
  absl::Time next_poll_ = start_;
  // The first one; an exit that explains it better may follow within settle_.
  std::optional<Failure> failure_;
  absl::Time failed_at_;
  bool reported_ = false;
  std::optional<absl::Time> ending_since_;
  bool saving_ = false;  // while ending: ps:0 takes a checkpoint and tells the others
  bool killed_ = false;
  int signal_ = 0;  // the signal that ended the job from outside
};

JobEnd Supervisor::Run() {
  if (const absl::Status status = cluster_.StartServers(); !status.ok()) {
    Fail({std::string(status.message())});
  }
  while (true) {
    const absl::Duration tick = workers_started_ ? kStatusPoll : kStartPoll;
    OnExits(cluster_.WaitForExits(interrupts_.fd(), tick));
    while (const auto signal = interrupts_.Next()) OnSignal(*signal);
    StartWorkersWhenReady();
    CheckStart();
    CheckWorkers();
    CheckLinger();
    ReportFailureWhenSettled();
    if (saving_ && !cluster_.IsRunning("ps:0")) End();
    const absl::Duration limit = saving_ ? kSaveDeadline : cluster_.traits().end_limit;
    if (ending_since_.has_value() && !killed_ && Now() - *ending_since_ >= limit) {
      console_.Warn(absl::StrCat(Names(cluster_.running()), " did not end within ",
                                 absl::FormatDuration(limit), "; killed"));
      killed_ = true;
      cluster_.Kill();
    }
    if (cluster_.running().empty() && (workers_started_ || ending_since_.has_value())) break;
    cluster_.ShowHeld(Now() - settle_);
    PollStatus();
  }
  cluster_.ShowHeld(absl::InfiniteFuture());
  if (!failure_.has_value()) Warn();
  console_.SetStatus("");
  JobEnd end;
  if (failure_.has_value()) end.failure = CauseOfFailure().exit_code;
  end.signal = signal_;
  end.done = coordinator_done_;
  end.exits = std::move(exits_);
  return end;
}

void Supervisor::StartWorkersWhenReady() {
  if (failure_.has_value() || ending_since_.has_value()) return;
  const auto missing = cluster_.Missing();
  if (!missing.ok()) return Fail({std::string(missing.status().message())});
  if (!missing->empty()) {
    if (Now() - step_started_ <= kStartDeadline) return;
    return Fail({absl::StrCat(Names(*missing), cluster_.traits().missing, " within ",
                              absl::FormatDuration(kStartDeadline)),
                 kExitPeerLost, (*missing)[0], cluster_.traits().hint});
  }
  if (workers_started_) return;
  workers_started_ = true;
  step_started_ = Now();
  if (!cluster_.dashboard().empty()) console_.Line(absl::StrCat("dashboard: ", cluster_.dashboard()));
  begun_by_ = step_started_ + kTellsStart;
  console_.SetStatus(absl::StrCat(plan_.name, "  starting workers"));
  const absl::Status status = cluster_.StartWorkers();
  if (!status.ok()) return Fail({std::string(status.message())});
  status_ = std::make_unique<StatusClient>(cluster_.coordinator_address(), cluster_.token(), cluster_.tls());
}

bool Supervisor::MayRestart(const TaskExit& exit) const {
  if (cluster_.traits().restarts || failure_.has_value() || ending_since_.has_value()) return false;
  if (!IsWorthRestart(exit) || exit.restarts >= plan_.restart) return false;
  // A server finds its weights again in a checkpoint, or not at all. A task that comes to a job that is done
  // would only wait.
  if (coordinator_done_) return false;
  return absl::StartsWith(exit.task, "ps:") ? plan_.saves : !some_worker_done_;
}

void Supervisor::Restart(TaskExit* exit) {
  const absl::Status status = cluster_.Restart(exit->task);
  // Without its host a task stays away: the rest follows as without --restart.
  if (!status.ok() && !exit->lost.empty()) return console_.Warn(status.message());
  if (!status.ok()) return Fail({std::string(status.message())});
  exit->restarted = true;
  restarted_at_[exit->task] = Now();
}

void Supervisor::TellRestart(const TaskExit& exit) {
  const bool lost = !exit.lost.empty();
  console_.Warn(absl::StrCat(TaskAndHost(exit),
                             lost                    ? " was lost with its host"
                             : exit.exit.signal != 0 ? " was killed by "
                                                     : " ended with ",
                             lost ? "" : exit.exit.ToString(), " after ", FormatSeconds(exit.seconds),
                             "; started again (", exit.restarts + 1, " of ", plan_.restart, ")"));
}

void Supervisor::OnExits(std::vector<TaskExit> exits) {
  for (TaskExit& exit : exits) {
    if (exit.exit.ok() && absl::StartsWith(exit.task, "worker:")) some_worker_done_ = true;
    if (exit.exit.ok() && exit.task == "ps:0") {
      coordinator_done_ = true;
      done_at_ = Now();
    }
  }
  for (TaskExit& exit : exits) {
    exit.skipped =
        plan_.skips_workers && absl::StartsWith(exit.task, "worker:") && exit.exit.code == kExitInternal;
    exit.job_done = coordinator_done_;
    if (MayRestart(exit)) Restart(&exit);
    if (exit.restarted) TellRestart(exit);
    exits_.push_back(exit);
    last_exit_ = Now();
    if (MeaningOf(exit) == ExitMeaning::kFatal) Fail({});
    if (exit.exit.ok() && !workers_started_) {
      Fail({absl::StrCat(exit.task, " ended before any worker had started"), kExitInternal, exit.task});
    }
  }
  if (failure_.has_value()) return;
  for (const TaskExit& exit : exits) {
    if (exit.restarted || MeaningOf(exit) != ExitMeaning::kSurvivable) continue;
    warnings_.push_back(absl::StrCat(
        DescribeExit(exit), exit.job_done ? "; the job is done anyway" : "; the job goes on without it"));
  }
}

void Supervisor::Warn() {
  for (const std::string& warning : std::exchange(warnings_, {})) console_.Warn(warning);
}

// ps:0 would wait cluster.start_seconds for tasks that will not come.
void Supervisor::CheckStart() {
  const absl::Time now = Now();
  if (cluster_.traits().free_workers || now >= begun_by_ ||
      cluster_.CountRunning("worker") >= plan_.needed_workers) {
    return Warn();
  }
  if (failure_.has_value() || waits_ - last_exit_ < settle_) return;
  const auto cause = FirstCause(exits_);
  if (!cause.has_value()) return FailWithoutMembers();
  const TaskExit& exit = exits_[*cause];
  Fail({absl::StrCat(DescribeExit(exit), "; the job had not begun, and cannot with fewer than ",
                     Counted(plan_.needed_workers, "worker")),
        ExitCodeFor(exit), exit.task, HintFor(exit), exit.last_lines});
}

// Fails if a worker has ended well before the job has begun: that worker never was in the job.
void Supervisor::FailWithoutMembers() {
  const TaskExit* ended = FindWorker(exits_, /*ok=*/true);
  if (ended == nullptr) return;
  Fail({absl::StrCat("the program of ", TaskAndHost(*ended), " ended after ", FormatSeconds(ended->seconds),
                     " without joining the job"),
        kExitInternal, ended->task,
        "a program joins with the loop over weir.torch.Optimizer(...).loader(), or with a weir.Client; is "
        "this the right program, and does it come to its loop?",
        ended->last_lines});
}

// ps:0 would wait for a worker to come.
void Supervisor::CheckWorkers() {
  if (!workers_started_ || cluster_.traits().free_workers) return;
  if (cluster_.Runs("worker") || some_worker_done_ || coordinator_done_) return;
  // The job may be about to end.
  if (Now() - last_exit_ >= settle_) Fail({});
}

// A program may run on after the job, for example to evaluate its model. A program that was started again
// just before the end may join only when the job is done, and would wait for the servers.
void Supervisor::EndStragglers(absl::Duration quiet) {
  std::vector<std::string> late;
  for (const std::string& task : cluster_.running()) {
    const auto restart = restarted_at_.find(task);
    if (restart != restarted_at_.end() && done_at_ - restart->second < kLinger) late.push_back(task);
  }
  if (late.empty()) return;
  if (!std::exchange(ended_stragglers_, true)) {
    console_.Warn(absl::StrCat(Names(late), late.size() == 1 ? " was" : " were", " started again, and still ",
                               late.size() == 1 ? "runs " : "run ", absl::FormatDuration(kStragglers),
                               " after the job's end; ended"));
    for (const std::string& task : late) cluster_.EndOne(task, SIGTERM);
  } else if (quiet >= kStragglers + cluster_.traits().end_limit) {
    for (const std::string& task : late) cluster_.EndOne(task, SIGKILL);
  }
}

void Supervisor::CheckLinger() {
  if (!workers_started_ || failure_.has_value() || ending_since_.has_value()) return;
  const auto running = cluster_.running();
  if (running.empty()) return;
  const auto still_run = [&](absl::Duration limit, absl::string_view after) {
    return absl::StrCat(Names(running), " still ", running.size() == 1 ? "runs " : "run ",
                        absl::FormatDuration(limit), " after ", after);
  };
  const absl::Duration quiet = Now() - last_exit_;
  const bool servers_run = cluster_.Runs("ps");
  const bool others_run = cluster_.Runs("worker") || cluster_.Runs("evaluator");
  if (coordinator_done_ && others_run && !plan_.cluster.program.empty()) {
    if (quiet >= kStragglers) EndStragglers(quiet);
    return;
  }
  if (coordinator_done_ && quiet >= kStragglers) {
    // For example, a worker that was away when the others were told of the end.
    console_.Warn(still_run(kStragglers, "the job's end; ended"));
    return End();
  }
  const absl::Duration limit = (servers_run ? kLinger + plan_.lease : kLinger) + digests_;
  if (servers_run == others_run || quiet < limit || cluster_.traits().free_workers) return;
  Fail({still_run(limit, servers_run ? "all workers have ended" : "all servers have ended"), kExitInternal,
        running[0], ""});
}

void Supervisor::OnSignal(int signal) {
  const JobCluster::Traits& traits = cluster_.traits();
  const bool ends_itself = traits.ends && signal == SIGTERM;
  const bool is_notice = signal == traits.notice;
  if (is_notice && (failure_.has_value() || ending_since_.has_value())) return;
  if (signal_ != 0) {
    if (ends_itself) return;
    killed_ = true;
    cluster_.Kill();
    return;
  }
  signal_ = signal;
  if (ending_since_.has_value()) return;
  saving_ = plan_.saves && workers_started_ && !ends_itself && cluster_.IsRunning("ps:0");
  console_.Line(absl::StrCat(
      "SIG", sigabbrev_np(signal), ": ",
      saving_ ? (is_notice ? "saving a checkpoint and " : "saving a checkpoint, for --resume, and ") : "",
      "ending ", cluster_.running().size(), " tasks",
      ends_itself || is_notice ? "" : "; a second one kills them"));
  if (!saving_ && !ends_itself) return End();
  ending_since_ = Now();
  Mute();
  if (saving_) {
    cluster_.Save();
  } else {
    cluster_.ExpectEnd();
  }
}

void Supervisor::Fail(Failure failure) {
  if (failure_.has_value() || ending_since_.has_value()) return;
  failure_ = std::move(failure);
  failed_at_ = Now();
  // The cause is shown first. What other tasks say about the failure stays in their logs.
  Mute();
}

Failure Supervisor::CauseOfFailure() const {
  const auto cause = FirstCause(exits_);
  // A failure that this class found explains itself, unless the end of a task explains it better.
  if (!cause.has_value() || (!failure_->text.empty() && MeaningOf(exits_[*cause]) != ExitMeaning::kFatal)) {
    return *failure_;
  }
  const TaskExit& exit = exits_[*cause];
  // Servers end when the last worker has given up, though its program may end well.
  const bool programs_are_well = !plan_.cluster.program.empty() && some_worker_done_ &&
                                 !cluster_.Runs("worker") && FindWorker(exits_, /*ok=*/false) == nullptr;
  return {
      absl::StrCat(DescribeExit(exit), exit.restarted ? "; started again, but the job did not recover" : ""),
      ExitCodeFor(exit), exit.task,
      exit.exit.code == kExitPeerLost && programs_are_well
          ? "the workers' programs ended well; if the lines above say that every worker gave up, they left "
            "their loops too early: a loop ends by itself when the job is done, and for a shorter job there "
            "are train.epochs and train.examples"
          : HintFor(exit),
      exit.last_lines};
}

void Supervisor::ReportFailureWhenSettled() {
  if (!failure_.has_value() || reported_) return;
  const auto first = FirstCause(exits_);
  const bool heard = first.has_value() && MayHaveHeard(exits_[*first]);
  const absl::Duration settle = heard ? kSettleOfLoss : settle_;
  if (Now() - failed_at_ < settle && !cluster_.running().empty()) return;
  reported_ = true;
  const Failure cause = CauseOfFailure();
  std::vector<std::string> lines = cause.last_lines;
  if (lines.empty() && !cause.task.empty()) lines = cluster_.LastLines(cause.task);
  console_.Error(
      absl::StrCat(cause.text, lines.empty() ? "" : absl::StrCat("; the last lines of ", cause.task, ":")));
  for (const auto& line : lines) console_.Line(absl::StrCat("    ", line));
  if (!cause.hint.empty()) console_.Line(absl::StrCat("hint: ", cause.hint));
  console_.Line(absl::StrCat("logs: ", plan_.cluster.log_dir));
  End();
}

void Supervisor::End() {
  saving_ = false;
  ending_since_ = Now();
  Mute();
  cluster_.EndAll();
}

void Supervisor::PollStatus() {
  if (ending_since_.has_value()) {
    return console_.SetStatus(
        absl::StrCat(saving_ ? "saving a checkpoint: " : "ending: ", Names(cluster_.running())));
  }
  if (!workers_started_) return console_.SetStatus(absl::StrCat(plan_.name, "  starting servers"));
  if (coordinator_done_) {
    return console_.SetStatus(absl::StrCat(plan_.name, "  done; still running: ", Names(cluster_.running())));
  }
  if (status_ == nullptr || failure_.has_value() || Now() < next_poll_) return;
  const auto status = status_->Get(kStatusDeadline);
  next_poll_ = Now() + kStatusPoll;
  // ps:0 may be busy for a moment, or gone at the end; the last status stays.
  if (!status.ok()) return;
  console_.SetStatus(StatusLine(*status));
  digests_ = std::max(digests_, TimeForDigests(*status));
  if (status->state() != v1::STARTING) {
    begun_by_ = start_;
  } else if (begun_by_ != start_) {
    waits_ = Now();
    begun_by_ = waits_ + kTellsStart;
  }
}

void Supervisor::Mute() {
  if (!plan_.cluster.verbose) cluster_.Mute();
}

}  // namespace

Interrupts::Interrupts(std::initializer_list<int> signals) {
  pthread_sigmask(SIG_SETMASK, nullptr, &before_);
  const sigset_t mine = BlockSignals(signals);
  fd_ = signalfd(-1, &mine, SFD_NONBLOCK | SFD_CLOEXEC);
}

Interrupts::~Interrupts() {
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> Interrupts::Next() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

const TaskExit* FindWorker(const std::vector<TaskExit>& exits, bool ok) {
  const auto found = absl::c_find_if(exits, [ok](const TaskExit& exit) {
    return exit.exit.ok() == ok && absl::StartsWith(exit.task, "worker:");
  });
  return found == exits.end() ? nullptr : &*found;
}

absl::StatusOr<JobSummary> ReadJobSummary(const std::string& path, const std::vector<TaskExit>& exits,
                                          absl::Time start) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  if (text.empty()) return absl::InternalError("ps:0 left no summary");
  auto summary = ParseSummary(text);
  if (!summary.ok()) {
    return absl::InternalError(absl::StrCat("the summary of ps:0: ", summary.status().message()));
  }
  summary->total_seconds = absl::ToDoubleSeconds(Now() - start);
  for (const TaskExit& exit : exits) {
    summary->exit_codes[exit.task] = exit.exit.status();
    if (exit.restarted) ++summary->restarts[exit.task];
  }
  return summary;
}

JobEnd SuperviseJob(const JobPlan& plan, JobCluster& cluster, Console& console, Interrupts& interrupts) {
  return Supervisor(plan, cluster, console, interrupts).Run();
}

}  // namespace weir
