#include "cli/slurm/slurm_cluster.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/hosts/host_connection.h"
#include "cli/installation/installation.h"
#include "cli/installation/task_environment.h"
#include "cli/report/format.h"
#include "cli/report/summary.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

constexpr size_t kKeptLines = 10;
constexpr std::chrono::seconds kCancelLimit{10}, kSubmitLimit{15};
constexpr char kArray[] = "array";  // the file with SLURM's number of the array job

}  // namespace

absl::StatusOr<std::string> AskSlurm(Subprocess::Options command, std::chrono::seconds limit) {
  const std::string name = command.args[0];
  WEIR_ASSIGN_OR_RETURN(const CommandResult result, RunCommand(std::move(command), limit));
  const std::string output(absl::StripAsciiWhitespace(result.output));
  if (result.exit.ok()) return output;
  return absl::FailedPreconditionError(output.empty() ? absl::StrCat(name, ": ", result.exit.ToString())
                                                      : output);
}

absl::StatusOr<std::string> AskSlurm(std::vector<std::string> words, std::chrono::seconds limit) {
  Subprocess::Options command;
  command.args = std::move(words);
  return AskSlurm(std::move(command), limit);
}

std::string JobNumber(const std::string& submitted) {
  const std::string line = submitted.substr(submitted.rfind('\n') + 1);
  return line.substr(0, line.find(';'));
}

SlurmCluster::SlurmCluster(Options options, Allocation allocation)
    : JobCluster(
          std::move(options),
          Traits{/*settle=*/absl::Seconds(1),  // with the time that srun takes to bring a report
                 /*end_limit=*/absl::Seconds(60), /*restarts=*/true, /*notice=*/SIGUSR1, /*ends=*/true,
                 /*free_workers=*/allocation.array,
                 /*missing=*/" did not start",
                 absl::StrCat("is `weir` on a disk that all nodes see, and does `squeue --steps --job=",
                              allocation.id, "` show the step?")}),
      allocation_(std::move(allocation)) {}

absl::StatusOr<std::unique_ptr<JobCluster>> SlurmCluster::Create(Options options, Allocation allocation) {
  WEIR_RETURN_IF_ERROR(CheckCanRun("srun"));
  std::unique_ptr<SlurmCluster> cluster(new SlurmCluster(std::move(options), std::move(allocation)));
  WEIR_RETURN_IF_ERROR(cluster->PrepareFolder());
  WEIR_RETURN_IF_ERROR(cluster->Prepare());
  return cluster;
}

absl::Status SlurmCluster::PrepareFolder() {
  const std::string& folder = options_.log_dir;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || chmod(folder.c_str(), 0700) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot make the folder --log_dir=", folder,
                     " for this user alone: ", error ? error.message() : std::strerror(errno)));
  }
  // A job that SLURM has queued again has its earlier start's files.
  for (const char* left : {"cluster.json", kSummary}) RemoveIfThere(File(left));
  // Its array of workers outlives a node that is lost.
  if (const absl::StatusOr<std::string> before = ReadTextFile(File(kArray)); before.ok()) {
    array_ = *before;
    CancelArray("");
  }
  return absl::OkStatus();
}

SlurmCluster::~SlurmCluster() {
  // Workers of a job that is done end by themselves, perhaps after a last evaluation.
  CancelArray(ending_ ? "" : "PENDING");
  Kill();
  steps_.clear();  // joins their threads, which use the rest
}

absl::Status SlurmCluster::StartServers() {
  std::vector<Task*> tasks(options_.ps);
  for (int i = 0; i < options_.ps; ++i) {
    WEIR_ASSIGN_OR_RETURN(tasks[i], AddTask("ps", i));
  }
  std::vector<std::string> program = ConfigFlags(options_.config, options_.overrides);
  program.insert(program.begin(), options_.binaries.ps_server);
  // All interfaces: a node's name may be that of any of them.
  program.insert(program.end(), {absl::StrCat("--token_file=", File(kToken)), "--bind=0.0.0.0"});
  if (!options_.tls) program.push_back("--insecure_plaintext");
  return StartStep("ps", tasks, allocation_.restart_servers, {}, program);
}

absl::Status SlurmCluster::StartWorkers() {
  std::vector<std::string> servers, program = options_.program;
  for (int i = 0; i < options_.ps; ++i) servers.push_back(addresses_.at(absl::StrCat("ps:", i)));
  WEIR_RETURN_IF_ERROR(
      WriteFileWhole(File("cluster.json"), absl::StrCat(R"({"ps":)", JsonList(servers), "}\n")));
  std::vector<Task*> tasks(allocation_.array ? 0 : options_.workers);
  for (size_t i = 0; i < tasks.size(); ++i) {
    WEIR_ASSIGN_OR_RETURN(tasks[i], AddTask("worker", static_cast<int>(i)));
  }
  if (options_.evaluator) {
    WEIR_ASSIGN_OR_RETURN(tasks.emplace_back(), AddTask("evaluator", 0));
  }
  if (program.empty()) {
    program = ConfigFlags(options_.config, options_.overrides);
    program.insert(program.begin(), options_.binaries.worker);
    program.insert(program.end(),
                   {absl::StrCat("--token_file=", File(kToken)), absl::StrCat("--device=", options_.device)});
  }
  std::vector<std::string> flags = {absl::StrCat("--workers=", options_.workers),
                                    absl::StrCat("--servers=", absl::StrJoin(servers, ","))};
  if (allocation_.array) {
    flags.push_back("--array");
    return SubmitArray(flags, program);
  }
  return StartStep("worker", tasks, allocation_.restart_workers, flags, program);
}

std::vector<std::string> SlurmCluster::TaskCommand(const std::string& type, int restart,
                                                   const std::vector<std::string>& flags,
                                                   const std::vector<std::string>& program) const {
  std::vector<std::string> words = {allocation_.weir, "task", absl::StrCat("--type=", type),
                                    absl::StrCat("--folder=", options_.log_dir),
                                    absl::StrCat("--restart=", restart)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

absl::Status SlurmCluster::SubmitArray(const std::vector<std::string>& flags,
                                       const std::vector<std::string>& program) {
  Subprocess::Options sbatch;
  sbatch.args = {"sbatch",
                 "--parsable",
                 absl::StrCat("--job-name=weir-", allocation_.id, "-workers"),
                 absl::StrCat("--array=0-", options_.workers - 1),
                 "--ntasks=1",
                 "--requeue",
                 "--open-mode=append",
                 absl::StrCat("--output=", File("worker-%a.log"))};
  sbatch.args.insert(sbatch.args.end(), allocation_.array_options.begin(), allocation_.array_options.end());
  // The shell of an element knows its number and its CPUs.
  sbatch.args.push_back(
      absl::StrCat("--wrap=export OMP_NUM_THREADS=\"${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}\"; "
                   "exec srun --ntasks=1 --cpu-bind=none ",
                   ShellCommand(TaskCommand("worker", allocation_.restart_workers, flags, program))));
  if (!options_.program.empty()) {
    sbatch.environment = ProgramEnvironment(File(kToken), options_.overrides);
    SetProgramEnvironment(/*threads=*/0, &sbatch.environment);
  } else {
    sbatch.environment["WEIR_SET"] = "";
  }
  // What SLURM says of this allocation is wrong in another.
  sbatch.remove_environment = {"TF_CONFIG"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view variable = *entry;
    const std::string name(variable.substr(0, variable.find('=')));
    if (absl::StartsWith(name, "SLURM_") && name != "SLURM_CONF") sbatch.remove_environment.push_back(name);
  }
  const absl::StatusOr<std::string> said = AskSlurm(std::move(sbatch), kSubmitLimit);
  if (!said.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sbatch refused the array of workers: ", said.status().message(),
                     "; jobs must be allowed to submit jobs, and --worker_sbatch has the array's options"));
  }
  array_ = JobNumber(*said);
  options_.console->Line(
      absl::StrCat("workers: the elements of job ", array_, "; their output: ", File("worker-N.log")));
  return WriteFileWhole(File(kArray), array_);
}

void SlurmCluster::CancelArray(const std::string& state) {
  if (array_.empty()) return;
  std::vector<std::string> words = {array_};
  if (!state.empty()) words.insert(words.begin(), absl::StrCat("--state=", state));
  RunScancel(std::move(words));
  array_.clear();
  RemoveIfThere(File(kArray));
}

absl::Status SlurmCluster::StartStep(const std::string& type, const std::vector<Task*>& tasks, int restart,
                                     const std::vector<std::string>& flags,
                                     const std::vector<std::string>& program) {
  const size_t number = steps_.size();
  Step& step = steps_.emplace_back();
  step.tasks = tasks;
  const int count = static_cast<int>(tasks.size());
  Subprocess::Options srun;
  // --overlap: both steps use the whole allocation. The other flags keep the step whole when one task of it
  // ends, whatever the cluster's own settings are.
  srun.args = {"srun",
               absl::StrCat("--job-name=weir-", type),
               absl::StrCat("--ntasks=", count),
               absl::StrCat("--nodes=", std::min(count, allocation_.nodes)),
               "--distribution=cyclic",
               "--overlap",
               "--cpu-bind=none",
               "--kill-on-bad-exit=0",
               "--wait=0",
               "--export=ALL",
               "--label"};
  const std::vector<std::string> task = TaskCommand(type, restart, flags, program);
  srun.args.insert(srun.args.end(), task.begin(), task.end());
  if (type == "worker" && !options_.program.empty()) {
    srun.environment = ProgramEnvironment(File(kToken), options_.overrides);
    SetProgramEnvironment(allocation_.threads, &srun.environment);
  } else {
    srun.environment["WEIR_SET"] = "";
  }
  // They are of the allocation, and srun would warn that a step of another size does not fit them.
  srun.remove_environment = {"SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_DISTRIBUTION",
                             "TF_CONFIG"};
  srun.on_line = [this, number, &step](absl::string_view line) { OnLine(number, step, line); };
  srun.on_exit = [this, number](const ProcessExit& exit) { Add({number, {}, exit}); };
  WEIR_ASSIGN_OR_RETURN(step.srun, Subprocess::Start(std::move(srun)));
  step.ended = false;
  for (Task* const task : tasks) task->ended = false;
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
    if (!report.has_value() || report->task != step.tasks[rank]->name)
      return step.tasks[rank]->log->Add(text);
    return Add({number, *std::move(report), {}});
  }
  options_.console->Line(Printable(line));
  MutexLock lock(mutex_);
  said_.push_back(Printable(line));
  if (said_.size() > kKeptLines) said_.pop_front();
}

void SlurmCluster::Add(Event event) {
  MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  Wake();
}

void SlurmCluster::Handle(const Event& event, std::vector<TaskExit>* exits) {
  Step& step = steps_[event.step];
  const auto add = [&](TaskExit exit) {
    exit.was_ended = ending_;
    if (!exit.restarted) Find(exit.task)->ended = true;
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
  for (const Task* const task : step.tasks) {
    if (task->ended) continue;
    TaskExit exit;
    exit.task = task->name;
    if (addresses_.count(task->name) > 0) {
      // `weir task` itself was killed.
      exit.exit.signal = SIGKILL;
      exit.last_lines = task->log->LastLines();
    } else {
      exit.exit = event.srun;
      MutexLock lock(mutex_);
      exit.last_lines.assign(said_.begin(), said_.end());
    }
    add(std::move(exit));
  }
}

std::vector<TaskExit> SlurmCluster::WaitForExits(int also, absl::Duration limit) {
  WaitForWake(also, limit);
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
  std::vector<std::string> words = flags;
  words.push_back(absl::StrCat(allocation_.id, ".", step.id));
  RunScancel(std::move(words));
}

void SlurmCluster::RunScancel(std::vector<std::string> words) {
  words.insert(words.begin(), "scancel");
  // It also fails for what has just ended.
  const auto result = AskSlurm(std::move(words), kCancelLimit);
  if (absl::IsDeadlineExceeded(result.status())) options_.console->Warn(result.status().message());
}

// SIGTERM once: a step that saves a checkpoint is not asked again.
void SlurmCluster::End(Step& step) {
  ending_ = true;
  if (step.asked_end || step.id.empty()) return;
  step.asked_end = true;
  Cancel(step, {"--signal=TERM"});
}

// ps:0 alone has no number at SLURM, so all servers are asked.
void SlurmCluster::Save() { End(steps_[0]); }

void SlurmCluster::EndAll() {
  ending_ = true;
  CancelArray("");
  for (Step& step : steps_) End(step);
}

void SlurmCluster::Kill() {
  ending_ = true;
  for (const Step& step : steps_) {
    Cancel(step, {});
    // Then srun has no step yet, and ends with what it waits for.
    if (!step.ended && step.id.empty() && step.srun != nullptr) step.srun->Signal(SIGTERM);
  }
}

absl::StatusOr<std::vector<std::string>> SlurmCluster::Missing() {
  std::vector<std::string> missing = running();
  missing.erase(std::remove_if(missing.begin(), missing.end(),
                               [this](const std::string& task) { return addresses_.count(task) > 0; }),
                missing.end());
  return missing;
}

}  // namespace weir
