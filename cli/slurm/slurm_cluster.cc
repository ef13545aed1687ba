#include "cli/slurm/slurm_cluster.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/installation/task_environment.h"
#include "cli/report/format.h"
#include "cli/report/summary.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

constexpr size_t kKeptLines = 10;
constexpr std::chrono::seconds kCancelLimit{10};

}  // namespace

std::string SlurmCluster::File(absl::string_view name) const {
  return absl::StrCat(options_.job.log_dir, "/", name);
}

std::string SlurmCluster::summary_path() const { return File("summary.json"); }

absl::StatusOr<std::unique_ptr<SlurmCluster>> SlurmCluster::Create(Options options) {
  WEIR_ASSIGN_OR_RETURN(JobToken token, JobToken::Random());
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  std::unique_ptr<SlurmCluster> cluster(
      new SlurmCluster(std::move(options), std::move(token), std::move(wake)));
  WEIR_RETURN_IF_ERROR(cluster->Prepare());
  return cluster;
}

absl::Status SlurmCluster::Prepare() {
  const LocalCluster::Options& job = options_.job;
  std::error_code error;
  std::filesystem::create_directories(job.log_dir, error);
  if (error || chmod(job.log_dir.c_str(), 0700) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot make the folder --log_dir=", job.log_dir,
                     " for this user alone: ", error ? error.message() : std::strerror(errno)));
  }
  // A job that SLURM has queued again has its earlier start's files.
  for (const char* left : {"token", "certs", "cluster.json", "summary.json"}) RemoveIfThere(File(left));
  WEIR_RETURN_IF_ERROR(token_.Write(File("token")));
  if (job.tls) {
    WEIR_RETURN_IF_ERROR(WriteTaskCertificates(File("certs"), job.ps, job.workers));
    WEIR_ASSIGN_OR_RETURN(tls_, Tls::ReadIfGiven(TlsFilesIn(File("certs"), TaskIdentity("evaluator", 0))));
  }
  return absl::OkStatus();
}

SlurmCluster::~SlurmCluster() {
  Kill();
  steps_.clear();  // joins their threads, which use the rest
  for (const char* secret : {"token", "certs"}) RemoveIfThere(File(secret));
}

absl::Status SlurmCluster::StartServers() {
  const LocalCluster::Options& job = options_.job;
  std::vector<std::string> tasks, program = ConfigFlags(job.config, job.overrides);
  for (int i = 0; i < job.ps; ++i) tasks.push_back(absl::StrCat("ps:", i));
  program.insert(program.begin(), job.binaries.ps_server);
  // All interfaces: a node's name may be that of any of them.
  program.insert(program.end(), {absl::StrCat("--token_file=", File("token")), "--bind=0.0.0.0"});
  if (!job.tls) program.push_back("--insecure_plaintext");
  return StartStep("ps", tasks, options_.restart_servers, {}, program);
}

absl::Status SlurmCluster::StartWorkers() {
  const LocalCluster::Options& job = options_.job;
  std::vector<std::string> servers, tasks, program = job.program;
  for (int i = 0; i < job.ps; ++i) servers.push_back(addresses_.at(absl::StrCat("ps:", i)));
  WEIR_RETURN_IF_ERROR(
      WriteFileWhole(File("cluster.json"), absl::StrCat(R"({"ps":)", JsonList(servers), "}\n")));
  for (int i = 0; i < job.workers; ++i) tasks.push_back(absl::StrCat("worker:", i));
  if (job.evaluator) tasks.push_back("evaluator:0");
  if (program.empty()) {
    program = ConfigFlags(job.config, job.overrides);
    program.insert(program.begin(), job.binaries.worker);
    program.insert(program.end(), {absl::StrCat("--token_file=", File("token")), "--device=" + job.device});
  }
  const std::vector<std::string> flags = {absl::StrCat("--workers=", job.workers),
                                          absl::StrCat("--servers=", absl::StrJoin(servers, ","))};
  return StartStep("worker", tasks, options_.restart_workers, flags, program);
}

absl::Status SlurmCluster::StartStep(const std::string& type, const std::vector<std::string>& tasks,
                                     int restart, std::vector<std::string> flags,
                                     const std::vector<std::string>& program) {
  const size_t number = steps_.size();
  Step& step = steps_.emplace_back();
  step.tasks = tasks;
  step.ended = true;  // until it has begun
  for (const std::string& task : tasks) {
    TaskLog::Options log;
    log.task = task;
    log.path = File(absl::StrCat(absl::StrReplaceAll(task, {{":", "-"}}), ".log"));
    log.verbose = options_.job.verbose;
    log.console = options_.job.console;
    log.color = static_cast<Console::Color>(static_cast<int>(Console::Color::kTask0) + colors_++);
    WEIR_ASSIGN_OR_RETURN(step.logs.emplace_back(), TaskLog::Open(std::move(log)));
  }
  const int count = static_cast<int>(tasks.size());
  Subprocess::Options srun;
  // --overlap: both steps use the whole allocation. The other flags keep the step whole when one task of it
  // ends, whatever the cluster's own settings are.
  srun.args = {"srun",
               absl::StrCat("--job-name=weir-", type),
               absl::StrCat("--ntasks=", count),
               absl::StrCat("--nodes=", std::min(count, options_.nodes)),
               "--distribution=cyclic",
               "--overlap",
               "--cpu-bind=none",
               "--kill-on-bad-exit=0",
               "--wait=0",
               "--export=ALL",
               "--label",
               options_.weir,
               "task",
               absl::StrCat("--type=", type),
               absl::StrCat("--folder=", options_.job.log_dir),
               absl::StrCat("--restart=", restart)};
  srun.args.insert(srun.args.end(), flags.begin(), flags.end());
  srun.args.push_back("--");
  srun.args.insert(srun.args.end(), program.begin(), program.end());
  if (type == "worker" && !options_.job.program.empty()) {
    srun.environment = ProgramEnvironment(File("token"), options_.job.overrides);
    SetProgramEnvironment(options_.threads, &srun.environment);
  }
  // They are of the allocation, and srun would warn that a step of another size does not fit them.
  srun.remove_environment = {"SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION",
                             "TF_CONFIG"};
  srun.on_line = [this, number, &step](absl::string_view line) { OnLine(number, step, line); };
  srun.on_exit = [this, number](const ProcessExit& exit) { Add({number, {}, exit}); };
  WEIR_ASSIGN_OR_RETURN(step.srun, Subprocess::Start(std::move(srun)));
  step.ended = false;
  return absl::OkStatus();
}

// A thread of srun's process calls this. "3: text" is a line of the step's task 3.
void SlurmCluster::OnLine(size_t number, const Step& step, absl::string_view line) {
  const size_t colon = line.find(": ");
  uint32_t rank = 0;
  if (colon != absl::string_view::npos && absl::SimpleAtoi(line.substr(0, colon), &rank) &&
      rank < step.tasks.size()) {
    const absl::string_view text = line.substr(colon + 2);
    std::optional<TaskReport> report = ParseReport(text);
    // A program that writes a report of its own can speak for its own task alone.
    if (!report.has_value() || report->task != step.tasks[rank]) return step.logs[rank]->Add(text);
    return Add({number, *std::move(report), {}});
  }
  options_.job.console->Line(Printable(line));
  MutexLock lock(mutex_);
  said_.push_back(Printable(line));
  if (said_.size() > kKeptLines) said_.pop_front();
}

void SlurmCluster::Add(Event event) {
  MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  eventfd_write(wake_.get(), 1);
}

void SlurmCluster::Handle(const Event& event, std::vector<TaskExit>* exits) {
  Step& step = steps_[event.step];
  const auto add = [&](TaskExit exit) {
    exit.was_ended = ending_;
    if (!exit.restarted) ended_.insert(exit.task);
    exits->push_back(std::move(exit));
  };
  const TaskReport& report = event.report;
  if (!report.task.empty()) {
    step.id = report.step;
    if (report.end.has_value()) {
      TaskExit exit = *report.end;
      exit.last_lines = LastLines(exit.task);
      add(std::move(exit));
    } else {
      addresses_[report.task] = report.address;
    }
    return;
  }
  step.ended = true;
  for (const std::string& task : step.tasks) {
    if (ended_.count(task) > 0) continue;
    TaskExit exit;
    exit.task = task;
    if (addresses_.count(task) > 0) {
      // `weir task` itself was killed.
      exit.exit.signal = SIGKILL;
      exit.last_lines = LastLines(task);
    } else {
      exit.exit = event.srun;
      MutexLock lock(mutex_);
      exit.last_lines.assign(said_.begin(), said_.end());
    }
    add(std::move(exit));
  }
}

std::vector<TaskExit> SlurmCluster::WaitForExits(int also, absl::Duration limit) {
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {also, POLLIN, 0}};
  // An interrupted poll() needs no retry: the caller calls again.
  poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(std::max(limit, absl::ZeroDuration()))));
  eventfd_t ignored;
  eventfd_read(wake_.get(), &ignored);
  std::vector<Event> events;
  {
    MutexLock lock(mutex_);
    events.swap(events_);
  }
  std::vector<TaskExit> exits;
  for (const Event& event : events) Handle(event, &exits);
  return exits;
}

// Runs scancel for one step. If that fails, SLURM ends the step with the job.
void SlurmCluster::Cancel(const Step& step, const std::vector<std::string>& flags) {
  if (step.ended || step.id.empty()) return;
  Subprocess::Options scancel;
  scancel.args = {"scancel"};
  scancel.args.insert(scancel.args.end(), flags.begin(), flags.end());
  scancel.args.push_back(absl::StrCat(options_.allocation, ".", step.id));
  const auto result = RunCommand(std::move(scancel), kCancelLimit);
  if (!result.ok()) options_.job.console->Warn(absl::StrCat("scancel: ", result.status().message()));
}

void SlurmCluster::EndServers() {
  ending_ = true;
  if (!steps_.empty()) Cancel(steps_[0], {"--signal=TERM"});
}

void SlurmCluster::EndAll() {
  ending_ = true;
  for (const Step& step : steps_) Cancel(step, {"--signal=TERM"});
}

void SlurmCluster::Kill() {
  ending_ = true;
  for (const Step& step : steps_) {
    Cancel(step, {});
    // Then srun has no step yet, and ends with what it waits for.
    if (!step.ended && step.id.empty() && step.srun != nullptr) step.srun->Signal(SIGTERM);
  }
}

void SlurmCluster::ShowHeld(absl::Time until) {
  for (const Step& step : steps_) {
    for (const auto& log : step.logs) log->ShowHeld(until);
  }
}

void SlurmCluster::Mute() {
  for (const Step& step : steps_) {
    for (const auto& log : step.logs) log->Mute();
  }
}

std::vector<std::string> SlurmCluster::Missing() const {
  std::vector<std::string> missing;
  for (const std::string& task : running()) {
    if (addresses_.count(task) == 0) missing.push_back(task);
  }
  return missing;
}

std::vector<std::string> SlurmCluster::running() const {
  std::vector<std::string> names;
  for (const Step& step : steps_) {
    if (step.srun == nullptr) continue;
    absl::c_copy_if(step.tasks, std::back_inserter(names),
                    [&](const std::string& task) { return ended_.count(task) == 0; });
  }
  return names;
}

std::vector<std::string> SlurmCluster::LastLines(const std::string& task) const {
  for (const Step& step : steps_) {
    const auto found = absl::c_find(step.tasks, task);
    if (found != step.tasks.end()) return step.logs[found - step.tasks.begin()]->LastLines();
  }
  return {};
}

}  // namespace weir
