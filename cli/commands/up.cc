#include "cli/commands/up.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/local_cluster/local_cluster.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "common/program/exit_codes.h"
#include "common/protocol/job_failure.h"
#include "common/system/clock.h"

namespace weir {
namespace {

// SIGUSR1 says that SLURM's time ends, as SIGTERM says elsewhere.
int EndedBy(int signal) { return signal == SIGUSR1 ? kExitDrained : 128 + signal; }

// One job, from its plan to its result.
class Job {
 public:
  Job(const UpOptions& options, Console& console, Interrupts& interrupts, const MakeCluster& make)
      : options_(options), console_(console), interrupts_(interrupts), make_(make) {}

  UpResult Run() {
    const absl::Status prepared = Prepare();
    const std::optional<int> signal = absl::IsCancelled(prepared) ? interrupts_.Next() : std::nullopt;
    if (prepared.ok()) {
      result_.exit_code = Judge(SuperviseJob(plan_, *cluster_, console_, interrupts_));
    } else if (signal.has_value()) {
      console_.Line(absl::StrCat("SIG", sigabbrev_np(*signal), ": ", prepared.message()));
      result_.exit_code = EndedBy(*signal);
    } else {
      console_.Error(prepared.message());
      // Whatever Prepare finds is for a person to correct.
      result_.exit_code = kExitConfig;
    }
    cluster_.reset();
    TidyLogs();
    return std::move(result_);
  }

 private:
  absl::Status Prepare();
  absl::Status MakeLogDir();
  int Judge(const JobEnd& end);
  absl::Status ReadSummary(const JobEnd& end);
  absl::Status Finish(const JobEnd& end);
  void TidyLogs();

  const UpOptions& options_;
  Console& console_;
  Interrupts& interrupts_;
  const MakeCluster& make_;
  const absl::Time start_ = Clock::Real().Now();

  UpResult result_;
  bool temporary_logs_ = false;  // their folder is ours
  JobPlan plan_;
  std::unique_ptr<JobCluster> cluster_;
};

absl::Status Job::MakeLogDir() {
  const std::string& wanted = options_.cluster.log_dir;
  if (wanted.empty()) {
    const char* tmp = getenv("TMPDIR");
    std::string folder = absl::StrCat(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp", "/weir-XXXXXX");
    if (mkdtemp(folder.data()) == nullptr) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot make a folder for logs (", folder, "); name one with --log_dir"));
    }
    result_.log_dir = folder;
    temporary_logs_ = true;
    return absl::OkStatus();
  }
  std::error_code error;
  std::filesystem::create_directories(wanted, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot make the folder --log_dir=", wanted, ": ", error.message()));
  }
  result_.log_dir = wanted;
  return absl::OkStatus();
}

absl::Status Job::Prepare() {
  WEIR_ASSIGN_OR_RETURN(plan_, PlanJob(options_, console_));
  WEIR_RETURN_IF_ERROR(MakeLogDir());
  plan_.cluster.log_dir = result_.log_dir;
  result_.job_name = plan_.name;
  plan_.cluster.stop_fd = interrupts_.fd();
  WEIR_ASSIGN_OR_RETURN(cluster_, make_(plan_));
  return absl::OkStatus();
}

// A temporary folder stays if there is something to find in it.
void Job::TidyLogs() {
  if (!temporary_logs_) return;
  std::error_code ignored;
  if (result_.exit_code == kExitOk && !options_.keep_logs) {
    std::filesystem::remove_all(result_.log_dir, ignored);
  } else {
    std::filesystem::remove(result_.log_dir, ignored);  // if it is empty
  }
  if (!std::filesystem::exists(result_.log_dir, ignored)) result_.log_dir.clear();
}

int Job::Judge(const JobEnd& end) {
  if (end.failure.has_value()) {
    // Everything was computed, and the result can be read nowhere else.
    if (*end.failure == kExitStorage) ReadSummary(end).IgnoreError();
    return *end.failure;
  }
  result_.signal = end.signal;
  if (end.signal != 0 && !end.done) {
    if (plan_.saves && ReadSummary(end).ok()) {
      // Says from where the job can continue, or why it was not saved.
      const std::string failure = std::exchange(result_.summary, std::nullopt)->failure;
      if (!failure.empty()) console_.Line(failure);
    }
    console_.Line(absl::StrCat("logs: ", result_.log_dir));
    return EndedBy(end.signal);
  }
  if (const absl::Status status = Finish(end); !status.ok()) {
    console_.Error(status.message());
    console_.Line(absl::StrCat("logs: ", result_.log_dir));
    return KindOf(status) == v1::FAILURE_RESOURCE ? kExitStorage : kExitInternal;
  }
  if (end.signal != 0) return EndedBy(end.signal);
  if (plan_.cluster.program.empty() || FindWorker(end.exits, /*ok=*/true) != nullptr) return kExitOk;
  const TaskExit* const failed = FindWorker(end.exits, /*ok=*/false);
  if (failed == nullptr) return kExitOk;
  console_.Error("the job is done, but the program of no worker ended well: see the warnings");
  return ExitCodeFor(*failed);
}

absl::Status Job::ReadSummary(const JobEnd& end) {
  WEIR_ASSIGN_OR_RETURN(result_.summary, ReadJobSummary(cluster_->summary_path(), end.exits, start_));
  return absl::OkStatus();
}

absl::Status Job::Finish(const JobEnd& end) {
  if (const absl::Status status = ReadSummary(end); !status.ok()) {
    return absl::InternalError(absl::StrCat("all tasks ended well, but ", status.message()));
  }
  if (options_.summary.empty()) return absl::OkStatus();
  const absl::Status written = WriteFileWhole(options_.summary, SummaryJson(*result_.summary));
  if (written.ok()) return written;
  return StorageFailure(absl::StrCat("the job is done, but --summary: ", written.message()));
}

int RunUp(const UpOptions& options) {
  Interrupts interrupts;
  Console console(Console::StandardError());
  return ShowResult(RunJob(options, console, interrupts));
}

constexpr const char* kUpExamples = R"(Examples:
  weir up --ps=2 --workers=4 configs/digits.json
  weir up --ps=2 --workers=2 configs/fashion_mlp.json --seed=7 --summary=out.json
  weir up --workers=4 configs/digits.json --set 'consistency={"mode":"bounded","staleness":3}' --verbose
  weir up --ps=2 --workers=4 job.json -- python train.py ARGS
  weir up --hosts=localhost,ann@b --ps=2 --workers=8 job.json --copy -- python train.py

What follows -- is a program that each worker runs instead of `worker`, with its arguments.)";

}  // namespace

UpResult RunJob(const UpOptions& options, Console& console, Interrupts& interrupts, const MakeCluster& make) {
  return Job(options, console, interrupts, make).Run();
}

UpResult RunJob(const UpOptions& options, Console& console, Interrupts& interrupts) {
  return RunJob(options, console, interrupts,
                [](const JobPlan& plan) { return LocalCluster::Create(plan.cluster); });
}

int ShowResult(const UpResult& result) {
  if (result.summary.has_value()) {
    Print(SummaryText(result.job_name, *result.summary));
    if (!result.log_dir.empty()) Print(absl::StrFormat("  %-18s%s\n", "logs", result.log_dir));
  }
  return result.exit_code;
}

CommandWords SplitOffProgram(int argc, char** argv) {
  char** const end = argv + argc;
  constexpr absl::string_view kWithProgram[] = {"up", "run", "manifest", "slurm", "task"};
  char** const dashes = argc > 1 && absl::c_linear_search(kWithProgram, argv[1])
                            ? std::find(argv, end, std::string("--"))
                            : end;
  CommandWords words;
  words.count = static_cast<int>(dashes - argv);
  if (dashes != end) words.program.emplace(dashes + 1, end);
  return words;
}

void AddRunFlags(CLI::App* command, UpOptions* options) {
  command
      ->add_option("--device", options->cluster.device,
                   "Where workers compute: auto (a GPU if there is one), cpu, cuda:N; cuda:0,cuda:1 for "
                   "replicas in each worker")
      ->check([](const std::string& text) { return std::string(ParseDevices(text).status().message()); })
      ->capture_default_str();
  AddOverrides(command, &options->cluster.overrides);
  AddNamed(command, "--bin_dir", &options->bin_dir, "DIR",
           "Where ps_server and worker are (default: beside this program)");
  command->add_flag("--verbose", options->cluster.verbose,
                    "Show all lines of all tasks, not only warnings and errors");
}

namespace {

// The flags that say where tasks run, and how they get there.
void AddHostFlags(CLI::App* command, UpOptions* options) {
  JobCluster::Options& cluster = options->cluster;
  CLI::Option* hosts = AddNamed(command, "--hosts", &options->hosts, "FILE|A,B",
                                "Run the tasks on these hosts by ssh; a file has lines such as: a slots=4 "
                                "gpus=2. localhost is this machine");
  const auto add = [&](const char* name, std::string* value, const char* type, const char* what) {
    AddNamed(command, name, value, type, what)->needs(hosts);
  };
  add("--dir", &cluster.access.directory, "DIRECTORY",
      "Where tasks run on the hosts (default: the path of this working folder)");
  add("--weir", &cluster.access.weir, "PROGRAM",
      "The program weir on the hosts (default: at this one's path, or on PATH there)");
  add("--ssh", &cluster.access.ssh, "COMMAND", "ssh, with flags (default: ssh)");
  command
      ->add_flag("--copy", cluster.copy, "First copy the working folder to the hosts, without hidden files")
      ->needs(hosts);
  command
      ->add_option("--ps_port", cluster.ps_port,
                   "Port of each host's first server, which others follow (default: any free ports)")
      ->type_name("N")
      ->check(CLI::Range(1, 65000))
      ->needs(hosts);
}

}  // namespace

void AddJobFlags(CLI::App* command, UpOptions* options) {
  JobCluster::Options& cluster = options->cluster;
  AddConfigFile(command, &cluster.config);
  AddCount(command, "--ps", &cluster.ps, 64, "Servers");
  command->add_option("--workers", options->workers, "Workers (default: the config's cluster.workers, or 1)")
      ->check(CLI::Range(1, 256));
  command->add_option("--seed", options->seed, "The job's random seed (default: the config's)")
      ->check(WholeNumber());
  AddRunFlags(command, options);
  command->add_flag("--evaluator", cluster.evaluator,
                    "Add a task that evaluates every so often: `worker` the test set, PROGRAM what it likes");
  command
      ->add_flag(
          "--restart{3}", options->restart,
          "Start tasks that died again, each at most N times (--restart alone: 3); servers only if the "
          "job has checkpoints")
      ->type_name("N")
      ->check(CLI::Range(0, 1000));
  CLI::Option* resume = AddNamed(command, "--resume", &options->resume, "DIR",
                                 "Continue the job whose checkpoints are in DIR, and save there");
  AddNamed(command, "--init_from", &options->init_from, "DIR",
           "Start a new job with the weights of a checkpoint, or of the newest of a folder "
           "(DIR/best: the best)")
      ->excludes(resume);
}

void AddUpCommand(Commands& commands) {
  const auto options = std::make_shared<UpOptions>();
  CLI::App* command =
      commands.Add("up", "Run a job with servers and workers, on this machine or on hosts", kUpExamples);
  JobCluster::Options& cluster = options->cluster;
  AddJobFlags(command, options.get());
  AddNamed(command, "--summary", &options->summary, "FILE", "Write the summary as JSON to FILE");
  CLI::Option* log_dir = AddNamed(
      command, "--log_dir", &cluster.log_dir, "DIR",
      "Logs of all tasks (default: a fresh folder in $TMPDIR or /tmp, which is removed if all went well)");
  command->add_flag("--keep_logs", options->keep_logs, "Keep that fresh folder, and name it")
      ->excludes(log_dir);
  command->add_flag("--tls", cluster.tls,
                    "Mutual TLS between the tasks, with certificates made for this job");
  command
      ->add_option("--http_port", cluster.http_port,
                   "Port of ps:0's dashboard, /metrics, /healthz and /readyz; 0: any free port")
      ->check(CLI::Range(0, 65535));
  AddNamed(command, "--tensorboard_dir", &cluster.tensorboard_dir, "DIR",
           "Write the job's values over time to DIR, for TensorBoard");

  AddHostFlags(command, options.get());

  commands.OnRunWithProgram(command, &cluster.program, [options] { return RunUp(*options); });
}

void HintAtDashes(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> unknown = app.get_subcommand("up")->remaining();
  if (unknown.empty()) unknown = app.get_subcommand("manifest")->remaining();
  if (unknown.empty() || unknown.front()[0] == '-') return;
  std::vector<std::string> words(argv + 1, argv + argc);
  words.insert(std::find(words.begin(), words.end(), unknown.front()), "--");
  std::fprintf(stderr, "if `%s` is the program that each worker runs, put -- before it: weir %s\n",
               unknown.front().c_str(), absl::StrJoin(words, " ").c_str());
}

}  // namespace weir
