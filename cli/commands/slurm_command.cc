// `weir slurm` and `weir task`: a job in an allocation of SLURM.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_plan.h"
#include "cli/commands/job_supervisor.h"
#include "cli/commands/up.h"
#include "cli/hosts/host_connection.h"
#include "cli/installation/installation.h"
#include "cli/report/summary.h"
#include "cli/slurm/slurm_cluster.h"
#include "cli/slurm/slurm_task.h"
#include "common/base/status_macros.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

constexpr absl::Duration kStatusEvery = absl::Seconds(10);
constexpr std::chrono::seconds kRequeueLimit{20};
// Together less than half a minute, whatever SLURM does.
constexpr std::chrono::seconds kSubmitLimit{15}, kAskLimit{5};
// By when a job with checkpoints hears of its end, so that it can save one.
constexpr int kSaveSeconds = 120;

struct SlurmOptions {
  UpOptions up;
  int nodes = 0;  // 0: as many as SLURM takes
  std::string partition;
  std::vector<std::string> sbatch;  // "--time=1:00:00"
  bool plaintext = false;           // no TLS
  bool submit = false, here = false;
  bool array = false;                      // workers are the elements of an array job
  std::vector<std::string> worker_sbatch;  // as sbatch, of that job
};

// The command that runs the job in its allocation.
std::string RunCommandLine(const SlurmOptions& options, const std::string& weir) {
  const JobCluster::Options& job = options.up.cluster;
  std::vector<std::string> words = {weir, "slurm", job.config, "--here", absl::StrCat("--ps=", job.ps)};
  const auto add = [&](absl::string_view flag, const std::string& value) {
    if (!value.empty()) words.push_back(absl::StrCat(flag, value));
  };
  if (options.up.workers.has_value()) words.push_back(absl::StrCat("--workers=", *options.up.workers));
  if (options.up.seed.has_value()) words.push_back(absl::StrCat("--seed=", *options.up.seed));
  if (job.device != "auto") add("--device=", job.device);
  for (const std::string& change : job.overrides) words.insert(words.end(), {"--set", change});
  add("--bin_dir=", options.up.bin_dir);
  add("--log_dir=", job.log_dir);
  add("--resume=", options.up.resume);
  add("--init_from=", options.up.init_from);
  if (options.up.restart > 0) words.push_back(absl::StrCat("--restart=", options.up.restart));
  if (job.evaluator) words.push_back("--evaluator");
  if (job.verbose) words.push_back("--verbose");
  if (options.plaintext) words.push_back("--insecure_plaintext");
  if (options.array) {
    words.push_back("--array");
    add("--partition=", options.partition);
    for (const std::string& option : options.worker_sbatch) add("--worker_sbatch=", option);
  }
  if (!job.program.empty()) words.push_back("--");
  words.insert(words.end(), job.program.begin(), job.program.end());
  return ShellCommand(words);
}

std::string BatchScript(const SlurmOptions& options, const JobPlan& plan, const std::string& weir) {
  const int others = options.array ? 0 : plan.cluster.workers + (plan.cluster.evaluator ? 1 : 0);
  const int tasks = plan.cluster.ps + others;
  std::vector<std::string> lines = {absl::StrCat("--job-name=", ShellQuoted(plan.name))};
  if (options.nodes > 0) {
    lines.push_back(absl::StrCat("--nodes=", options.nodes));
    lines.push_back(absl::StrCat("--ntasks-per-node=", (tasks + options.nodes - 1) / options.nodes));
  } else {
    lines.push_back(absl::StrCat("--ntasks=", tasks));
  }
  if (!options.partition.empty()) lines.push_back(absl::StrCat("--partition=", options.partition));
  lines.insert(lines.end(), {"--output=weir-%j.out", "--open-mode=append"});
  if (plan.saves) {
    lines.insert(lines.end(), {"--requeue", absl::StrCat("--signal=B:USR1@", kSaveSeconds)});
  }
  lines.insert(lines.end(), options.sbatch.begin(), options.sbatch.end());
  std::string script = "#!/bin/bash\n";
  for (const std::string& line : lines) absl::StrAppend(&script, "#SBATCH ", line, "\n");
  return absl::StrCat(script, "exec ", RunCommandLine(options, weir), "\n");
}

// Submits a script, and says what became of it.
int Submit(const SlurmOptions& options, const std::string& script) {
  std::error_code ignored;
  const std::string file =
      (std::filesystem::temp_directory_path(ignored) / absl::StrCat("weir-", getpid(), ".sbatch")).string();
  if (const absl::Status status = WriteFileWhole(file, script); !status.ok()) {
    return Refuse(kExitStorage, status.message());
  }
  const absl::StatusOr<std::string> job = AskSlurm({"sbatch", "--parsable", file}, kSubmitLimit);
  std::filesystem::remove(file, ignored);
  if (!job.ok()) {
    const absl::StatusOr<std::string> partitions = AskSlurm({"sinfo", "-h", "-o", "%R"}, kAskLimit);
    if (!partitions.ok()) {
      return Refuse(kExitPeerLost, absl::StrCat("SLURM does not answer: ", job.status().message(),
                                                "; sinfo: ", partitions.status().message(),
                                                "; is slurmctld running, and is SLURM_CONF "
                                                "or /etc/slurm/slurm.conf that of this cluster?"));
    }
    const std::string wanted =
        options.partition.empty() ? "the default partition" : absl::StrCat("partition ", options.partition);
    return Refuse(kExitConfig, absl::StrCat("sbatch refused the job for ", wanted, ": ",
                                            job.status().message(), "\nthis cluster has the partitions ",
                                            absl::StrReplaceAll(*partitions, {{"\n", ", "}}),
                                            "; name one with --partition=NAME, and other limits with "
                                            "--sbatch=OPTION"));
  }
  const std::string id = JobNumber(*job);
  const auto state = AskSlurm({"squeue", "-h", "-j", id, "-o", "%T (%r)"}, kAskLimit);
  return Print(absl::StrCat("submitted job ", id, state.ok() && !state->empty() ? ": " + *state : "",
                            "\n  output   weir-", id, ".out\n  status   squeue --job=", id,
                            "\n  to end   scancel ", id, "\n"));
}

// ---- in an allocation

int NumberFromSlurm(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// A job that is queued again continues, once its folder holds a checkpoint.
absl::Status ResumeIfQueuedAgain(UpOptions* options) {
  if (NumberFromSlurm("SLURM_RESTART_COUNT", 0) == 0) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(const UpConfig up, ConfigOfUp(*options));
  const v1::CheckpointConfig& checkpoint = up.config.checkpoint();
  if (!checkpoint.has_directory() || !FindStart(checkpoint, /*resume=*/true).ok()) return absl::OkStatus();
  options->resume = checkpoint.directory();
  options->init_from.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobCluster>> MakeSlurmCluster(
    const JobPlan& plan, const std::string& id, const std::optional<std::vector<std::string>>& array) {
  SlurmCluster::Allocation allocation;
  allocation.id = id;
  WEIR_ASSIGN_OR_RETURN(allocation.weir, FindProgram("cli", "weir"));
  allocation.nodes = NumberFromSlurm("SLURM_JOB_NUM_NODES", 1);
  allocation.restart_workers = plan.restart;
  // A server finds its weights again in a checkpoint, or not at all.
  allocation.restart_servers = plan.saves ? plan.restart : 0;
  allocation.threads = NumberFromSlurm("SLURM_CPUS_PER_TASK", 1);
  allocation.array = array.has_value();
  allocation.array_options = array.value_or(std::vector<std::string>());
  WEIR_ASSIGN_OR_RETURN(auto cluster, SlurmCluster::Create(plan.cluster, std::move(allocation)));
  plan.cluster.console->Line(absl::StrCat("logs, and what `weir status` needs: ", plan.cluster.log_dir));
  return cluster;
}

void QueueAgain(const std::string& id, Console& console) {
  const absl::StatusOr<std::string> result = AskSlurm({"scontrol", "requeue", id}, kRequeueLimit);
  if (result.ok()) {
    return console.Line(absl::StrCat("job ", id, " is queued again, and continues from its checkpoint"));
  }
  console.Error(absl::StrCat("`scontrol requeue ", id, "`: ", result.status().message(),
                             "; submit the job again with --resume=DIR, which is its checkpoint.directory"));
}

// Runs a job in the allocation of SLURM that this process is in, with servers and workers over its nodes.
// Shows the summary, or the first cause of a failure, as `weir up` on one machine. On SIGUSR1, with which
// SLURM announces the end of the allocation, a job with checkpoints saves one and is queued again. Of the
// options, `cluster.log_dir` may be empty, and `cluster.tls` false means plain text. `array`: the workers are
// an array job of their own, with these options of sbatch. Returns the exit code.
int RunInAllocation(UpOptions options, const std::optional<std::vector<std::string>>& array) {
  const char* const allocation = std::getenv("SLURM_JOB_ID");
  if (allocation == nullptr || *allocation == '\0') {
    return Refuse(kExitConfig,
                  "--here runs the job in this allocation of SLURM, and SLURM_JOB_ID is not set: submit the "
                  "script that `weir slurm` prints without --here, or begin with salloc");
  }
  const std::string id = allocation;
  Interrupts interrupts({SIGINT, SIGTERM, SIGHUP, SIGUSR1});
  Console::Options shown = Console::StandardError();
  shown.plain_interval = kStatusEvery;
  Console console(std::move(shown));
  std::string& log_dir = options.cluster.log_dir;
  if (log_dir.empty()) log_dir = absl::StrCat("weir-", id);
  log_dir = std::filesystem::absolute(log_dir).lexically_normal().string();
  if (const absl::Status status = ResumeIfQueuedAgain(&options); !status.ok()) {
    return Refuse(kExitConfig, status.message());
  }
  bool saves = false;
  const UpResult result = RunJob(options, console, interrupts, [&](const JobPlan& plan) {
    saves = plan.saves;
    return MakeSlurmCluster(plan, id, array);
  });
  if (result.summary.has_value()) {
    const absl::Status written =
        WriteFileWhole(absl::StrCat(log_dir, "/summary.json"), SummaryJson(*result.summary));
    if (!written.ok()) console.Warn(written.message());
  } else if (result.signal == SIGUSR1 && saves && result.exit_code == kExitDrained) {
    QueueAgain(id, console);
  }
  return ShowResult(result);
}

// ---- the commands

int RunSlurm(SlurmOptions options) {
  options.up.cluster.tls = !options.plaintext;
  if (options.here) {
    if (!options.array) return RunInAllocation(options.up, std::nullopt);
    std::vector<std::string> array = options.worker_sbatch;
    if (!options.partition.empty()) array.insert(array.begin(), "--partition=" + options.partition);
    return RunInAllocation(options.up, array);
  }
  Console console(Console::StandardError());
  const absl::StatusOr<JobPlan> plan = PlanJob(options.up, console);
  if (!plan.ok()) return Refuse(kExitConfig, plan.status().message());
  const absl::StatusOr<std::string> weir = FindProgram("cli", "weir");
  if (!weir.ok()) return Refuse(kExitInternal, weir.status().message());
  const std::string script = BatchScript(options, *plan, *weir);
  if (!options.submit) return Print(script);
  if (const absl::Status status = CheckCanRun("sbatch"); !status.ok()) {
    return Refuse(kExitConfig, absl::StrCat(status.message(),
                                            "; --submit needs SLURM's commands on this "
                                            "machine; without --submit the script is printed"));
  }
  return Submit(options, script);
}

constexpr const char* kSlurmExamples = R"(Examples:
  weir slurm job.json --ps=2 --workers=8 --nodes=2 -- python train.py > job.sh; sbatch job.sh
  weir slurm job.json --ps=2 --workers=8 --submit --partition=gpu --sbatch=--time=02:00:00 -- python train.py
  salloc --nodes=2 --ntasks-per-node=5 weir slurm job.json --here --ps=2 --workers=8

What follows -- is a program that each worker runs instead of `worker`, with its arguments.)";

constexpr const char* kTaskExamples = R"(Example:
  srun --ntasks=8 --label weir task --type=worker --workers=8 --servers=node1:4321,node2:4322 --folder=weir-7 -- python train.py

`weir slurm` starts this command, with srun.)";

struct TaskOptions {
  SlurmTask task;
  std::string servers;
};

int RunTask(const TaskOptions& options) {
  SlurmTask task = options.task;
  task.servers = absl::StrSplit(options.servers, ',', absl::SkipEmpty());
  const absl::StatusOr<int> code = RunSlurmTask(task);
  return code.ok() ? *code : Refuse(kExitConfig, code.status().message());
}

}  // namespace

void AddSlurmCommands(Commands& commands) {
  const auto options = std::make_shared<SlurmOptions>();
  CLI::App* slurm = commands.Add(
      "slurm", "Print or submit the batch script that runs a job on a cluster of SLURM", kSlurmExamples);
  AddJobFlags(slurm, &options->up);
  slurm
      ->add_option("--nodes", options->nodes,
                   "Nodes, over which the tasks are spread (default: SLURM's choice)")
      ->check(CLI::Range(1, 1000));
  AddNamed(slurm, "--partition", &options->partition, "NAME", "Partition of SLURM (default: the cluster's)");
  AddRepeated(slurm, "--sbatch", &options->sbatch, "OPTION", "An option of sbatch for the script");
  CLI::Option* array = slurm->add_flag("--array", options->array,
                                       "Run the workers as elements of an array job of their own, which may "
                                       "come and go");
  array->excludes(slurm->get_option("--evaluator"));
  AddRepeated(slurm, "--worker_sbatch", &options->worker_sbatch, "OPTION",
              "An option of sbatch for the array job")
      ->needs(array);
  AddNamed(slurm, "--log_dir", &options->up.cluster.log_dir, "DIR",
           "Logs, token and certificates, in a folder that all nodes see (default: weir-JOBID)");
  slurm->add_flag("--insecure_plaintext", options->plaintext,
                  "No TLS: everybody on the network of the nodes may read the token and the weights");
  CLI::Option* submit =
      slurm->add_flag("--submit", options->submit, "Submit the script instead of printing it");
  slurm
      ->add_flag("--here", options->here,
                 "Run the job in the allocation that this process is in: what the script does")
      ->excludes(submit);

  const auto task = std::make_shared<TaskOptions>();
  CLI::App* one = commands.Add("task", "Run one task of a job of `weir slurm`, inside srun", kTaskExamples);
  one->add_option("--type", task->task.type, "What this step's tasks are")
      ->check(CLI::IsMember({"ps", "worker"}))
      ->required();
  one->add_flag("--array", task->task.array, "Take the worker's number from SLURM_ARRAY_TASK_ID");
  one->add_option("--workers", task->task.workers, "Workers of the job; a task after them is the evaluator");
  AddNamed(one, "--servers", &task->servers, "HOST:PORT,...", "Addresses of all servers");
  AddNamed(one, "--folder", &task->task.folder, "DIR", "The job's folder")->required();
  one->add_option("--restart", task->task.restart, "How often a program that died is started again");

  commands.OnRunWithProgram(slurm, &options->up.cluster.program, [options] { return RunSlurm(*options); });
  commands.OnRunWithProgram(one, &task->task.program, [one, task] {
    if (task->task.program.empty()) return BadCommandLine(*one, kProgramIsMissing);
    return RunTask(*task);
  });
}

}  // namespace weir
