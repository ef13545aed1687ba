#include "cli/commands/slurm_job.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/commands/job_supervisor.h"
#include "cli/installation/installation.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/report/status_text.h"
#include "cli/report/summary.h"
#include "cli/slurm/slurm_cluster.h"
#include "common/base/status_macros.h"
#include "common/program/exit_codes.h"
#include "common/system/clock.h"

namespace weir {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kStatusDeadline = absl::Milliseconds(250);
constexpr absl::Duration kStatusEvery = absl::Seconds(10);
// From the start of a step to the report of each of its tasks.
constexpr absl::Duration kStartDeadline = absl::Seconds(30);
// The three of job_supervisor.cc, with the time that srun takes to bring a report.
constexpr absl::Duration kSettle = absl::Seconds(1);
constexpr absl::Duration kSettleOfLoss = absl::Seconds(10);
constexpr absl::Duration kStragglers = absl::Seconds(5);
// From SIGTERM to SIGKILL, also while a checkpoint is taken.
constexpr absl::Duration kEndDeadline = absl::Seconds(60);
constexpr std::chrono::seconds kRequeueLimit{20};

absl::Time Now() { return Clock::Real().Now(); }

int NumberFromSlurm(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// SIGUSR1 says that the time ends, as SIGTERM does elsewhere.
int EndedBy(int signal) { return signal == SIGUSR1 ? kExitDrained : 128 + signal; }

// One job in an allocation.
class SlurmJob {
 public:
  SlurmJob(UpOptions options, std::string allocation, Console& console, Interrupts& interrupts)
      : options_(std::move(options)),
        allocation_(std::move(allocation)),
        console_(console),
        interrupts_(interrupts) {}

  int Run();

 private:
  absl::Status Prepare();
  void Supervise();
  void StartWorkersWhenReady();
  void OnExit(const TaskExit& exit);
  void OnSignal(int signal);
  void Fail(absl::string_view why, int exit_code);
  void ReportFailureWhenSettled();
  void FinishEnd();
  void End();
  void ShowStatus();
  int Judge();
  void QueueAgain();

  UpOptions options_;
  const std::string allocation_;
  Console& console_;
  Interrupts& interrupts_;
  const absl::Time start_ = Now();

  JobPlan plan_;
  std::unique_ptr<SlurmCluster> cluster_;
  std::unique_ptr<StatusClient> status_;
  absl::Time step_started_ = start_, next_status_ = start_, last_exit_ = start_;
  bool workers_started_ = false;
  bool job_done_ = false;  // ps:0 has ended well
  std::vector<TaskExit> exits_;
  std::optional<absl::Time> failed_at_;
  int failure_ = kExitOk;  // once the failure is reported
  std::optional<absl::Time> ending_since_;
  bool saving_ = false;  // while ending: the servers take a checkpoint and tell the workers
  int signal_ = 0;       // that ended the job from outside
};

absl::Status SlurmJob::Prepare() {
  LocalCluster::Options& job = options_.cluster;
  if (job.log_dir.empty()) job.log_dir = absl::StrCat("weir-", allocation_);
  job.log_dir = std::filesystem::absolute(job.log_dir).lexically_normal().string();
  if (NumberFromSlurm("SLURM_RESTART_COUNT", 0) > 0) {
    // The folder holds checkpoints of this job, once it has taken any.
    WEIR_ASSIGN_OR_RETURN(const UpConfig up, ConfigOfUp(options_));
    const v1::CheckpointConfig& checkpoint = up.config.checkpoint();
    if (checkpoint.has_directory() && FindStart(checkpoint, /*resume=*/true).ok()) {
      options_.resume = checkpoint.directory();
      options_.init_from.clear();
    }
  }
  WEIR_ASSIGN_OR_RETURN(plan_, PlanJob(options_, console_));
  SlurmCluster::Options cluster;
  cluster.job = plan_.cluster;
  WEIR_ASSIGN_OR_RETURN(cluster.weir, FindProgram("cli", "weir"));
  cluster.allocation = allocation_;
  cluster.nodes = NumberFromSlurm("SLURM_JOB_NUM_NODES", 1);
  cluster.restart_workers = plan_.restart;
  // A server finds its weights again in a checkpoint, or not at all.
  cluster.restart_servers = plan_.saves ? plan_.restart : 0;
  cluster.threads = NumberFromSlurm("SLURM_CPUS_PER_TASK", 1);
  WEIR_ASSIGN_OR_RETURN(cluster_, SlurmCluster::Create(std::move(cluster)));
  console_.Line(absl::StrCat("logs, and what `weir status` needs: ", job.log_dir));
  return absl::OkStatus();
}

int SlurmJob::Run() {
  if (const absl::Status status = Prepare(); !status.ok()) {
    console_.Error(status.message());
    return kExitConfig;
  }
  Supervise();
  cluster_->ShowHeld(absl::InfiniteFuture());
  console_.SetStatus("");
  const int code = Judge();
  cluster_.reset();
  if (signal_ == SIGUSR1 && plan_.saves && !job_done_ && code == kExitDrained) QueueAgain();
  return code;
}

void SlurmJob::Supervise() {
  if (const absl::Status status = cluster_->StartServers(); !status.ok()) {
    console_.Error(status.message());
    failure_ = kExitConfig;
    return;
  }
  while (!cluster_->running().empty()) {
    for (const TaskExit& exit : cluster_->WaitForExits(interrupts_.fd(), kTick)) OnExit(exit);
    while (const auto signal = interrupts_.Next()) OnSignal(*signal);
    StartWorkersWhenReady();
    ReportFailureWhenSettled();
    FinishEnd();
    cluster_->ShowHeld(Now() - kSettle);
    ShowStatus();
  }
  ReportFailureWhenSettled();
}

void SlurmJob::StartWorkersWhenReady() {
  if (failed_at_.has_value() || ending_since_.has_value()) return;
  const std::vector<std::string> missing = cluster_->Missing();
  if (!missing.empty()) {
    if (Now() - step_started_ < kStartDeadline) return;
    return Fail(absl::StrCat(absl::StrJoin(missing, ", "), " did not start within ",
                             absl::FormatDuration(kStartDeadline),
                             "; is `weir` on a disk that all nodes see, and does `squeue --steps --job=",
                             allocation_, "` show the step?"),
                kExitPeerLost);
  }
  if (workers_started_) return;
  workers_started_ = true;
  step_started_ = Now();
  if (const absl::Status status = cluster_->StartWorkers(); !status.ok()) {
    return Fail(status.message(), kExitInternal);
  }
  status_ =
      std::make_unique<StatusClient>(cluster_->coordinator_address(), cluster_->token(), cluster_->tls());
}

// Ends the job for a cause that is no task's end.
void SlurmJob::Fail(absl::string_view why, int exit_code) {
  failure_ = exit_code;
  failed_at_ = Now();
  console_.Error(why);
  End();
}

void SlurmJob::OnExit(const TaskExit& ended) {
  TaskExit exit = ended;
  last_exit_ = Now();
  if (exit.task == "ps:0" && exit.exit.ok()) job_done_ = true;
  exit.job_done = job_done_;
  exit.skipped =
      plan_.skips_workers && absl::StartsWith(exit.task, "worker:") && exit.exit.code == kExitInternal;
  const ExitMeaning meaning = MeaningOf(exit);
  const bool over = failed_at_.has_value() || ending_since_.has_value();
  if (!over && meaning == ExitMeaning::kFatal) {
    // ReportFailureWhenSettled() finds the cause: the end that explains it best may follow.
    failed_at_ = Now();
    if (!plan_.cluster.verbose) cluster_->Mute();
  } else if (!over && meaning == ExitMeaning::kSurvivable) {
    console_.Warn(absl::StrCat(DescribeExit(exit), exit.restarted  ? "; started again"
                                                   : exit.job_done ? "; the job is done anyway"
                                                                   : "; the job goes on without it"));
  } else if (!over && !workers_started_) {
    Fail(absl::StrCat(exit.task, " ended before any worker had started"), kExitInternal);
  }
  exits_.push_back(std::move(exit));
}

// SIGTERM comes from SLURM, which at the same time ends the tasks (scancel, the end of the time). Other
// signals come to this process alone.
void SlurmJob::OnSignal(int signal) {
  const bool over = failed_at_.has_value() || ending_since_.has_value();
  if (signal == SIGUSR1 && over) return;
  if (signal_ != 0 && signal != SIGTERM) return cluster_->Kill();
  if (signal_ == 0) signal_ = signal;
  if (over) return;
  ending_since_ = Now();
  saving_ = plan_.saves && workers_started_ && signal != SIGTERM;
  console_.Line(absl::StrCat("SIG", sigabbrev_np(signal), ": ", saving_ ? "saving a checkpoint and " : "",
                             "ending ", cluster_->running().size(), " tasks"));
  if (!plan_.cluster.verbose) cluster_->Mute();
  if (signal == SIGTERM) {
    cluster_->ExpectEnd();
  } else if (saving_) {
    cluster_->EndServers();
  } else {
    cluster_->EndAll();
  }
}

void SlurmJob::ReportFailureWhenSettled() {
  if (!failed_at_.has_value() || failure_ != kExitOk) return;
  const TaskExit& cause = exits_[*FirstCause(exits_)];
  const absl::Duration settle = MayHaveHeard(cause) ? kSettleOfLoss : kSettle;
  if (Now() - *failed_at_ < settle && !cluster_->running().empty()) return;
  failure_ = ExitCodeFor(cause);
  console_.Error(
      absl::StrCat(DescribeExit(cause),
                   cause.last_lines.empty() ? "" : absl::StrCat("; the last lines of ", cause.task, ":")));
  for (const std::string& line : cause.last_lines) console_.Line(absl::StrCat("    ", line));
  if (const std::string hint = HintFor(cause); !hint.empty()) console_.Line(absl::StrCat("hint: ", hint));
  console_.Line(absl::StrCat("logs: ", plan_.cluster.log_dir));
  End();
}

void SlurmJob::End() {
  saving_ = false;
  ending_since_ = Now();
  if (!plan_.cluster.verbose) cluster_->Mute();
  cluster_->EndAll();
}

void SlurmJob::FinishEnd() {
  const std::vector<std::string> running = cluster_->running();
  if (running.empty()) return;
  if (ending_since_.has_value()) {
    const bool servers_run = absl::StartsWith(running[0], "ps:");
    if (saving_ && !servers_run) return End();
    if (Now() - *ending_since_ >= kEndDeadline) {
      console_.Warn(absl::StrCat(absl::StrJoin(running, ", "), " did not end within ",
                                 absl::FormatDuration(kEndDeadline), "; killed"));
      ending_since_ = absl::InfiniteFuture();
      cluster_->Kill();
    }
  } else if (job_done_ && plan_.cluster.program.empty() && Now() - last_exit_ >= kStragglers) {
    // For example, a worker that was away when the others were told of the end. A program of the user may
    // work on.
    End();
  }
}

void SlurmJob::ShowStatus() {
  if (status_ == nullptr || job_done_ || failed_at_ || ending_since_ || Now() < next_status_) return;
  next_status_ = Now() + kStatusEvery;
  const auto status = status_->Get(kStatusDeadline);
  if (status.ok()) console_.SetStatus(StatusLine(*status));
}

int SlurmJob::Judge() {
  if (failure_ != kExitOk && !job_done_) return failure_;
  auto summary = ReadJobSummary(cluster_->summary_path(), exits_, start_);
  if (signal_ != 0) {
    // Says from where the job can continue, or why it was not saved.
    if (summary.ok() && !summary->failure.empty()) console_.Line(summary->failure);
    if (!job_done_) return EndedBy(signal_);
  }
  if (summary.ok()) {
    Print(SummaryText(plan_.name, *summary));
    const absl::Status written = WriteFileWhole(cluster_->summary_path(), SummaryJson(*summary));
    if (!written.ok()) console_.Warn(written.message());
  } else {
    console_.Error(summary.status().message());
    return kExitInternal;
  }
  if (failure_ != kExitOk) return failure_;
  if (signal_ != 0) return EndedBy(signal_);
  if (plan_.cluster.program.empty() || FindWorker(exits_, /*ok=*/true) != nullptr) return kExitOk;
  const TaskExit* const failed = FindWorker(exits_, /*ok=*/false);
  if (failed == nullptr) return kExitOk;
  console_.Error("the job is done, but the program of no worker ended well: see the warnings");
  return ExitCodeFor(*failed);
}

void SlurmJob::QueueAgain() {
  Subprocess::Options scontrol;
  scontrol.args = {"scontrol", "requeue", allocation_};
  const auto result = RunCommand(std::move(scontrol), kRequeueLimit);
  if (result.ok() && result->exit.ok()) {
    console_.Line(absl::StrCat("job ", allocation_, " is queued again, and continues from its checkpoint"));
  } else {
    console_.Error(absl::StrCat(
        "`scontrol requeue ", allocation_,
        "`: ", result.ok() ? absl::StripAsciiWhitespace(result->output) : result.status().message(),
        "; submit the job again with --resume=DIR, which is its checkpoint.directory"));
  }
}

}  // namespace

int RunInAllocation(UpOptions options) {
  const char* const allocation = std::getenv("SLURM_JOB_ID");
  if (allocation == nullptr || *allocation == '\0') {
    return Refuse(kExitConfig,
                  "--here runs the job in this allocation of SLURM, and SLURM_JOB_ID is not set: submit the "
                  "script that `weir slurm` prints without --here, or begin with salloc");
  }
  Interrupts interrupts({SIGINT, SIGTERM, SIGHUP, SIGUSR1});
  Console::Options shown = Console::StandardError();
  shown.plain_interval = kStatusEvery;
  Console console(std::move(shown));
  return SlurmJob(std::move(options), allocation, console, interrupts).Run();
}

}  // namespace weir
