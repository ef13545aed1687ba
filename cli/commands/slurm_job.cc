#include "cli/commands/slurm_job.h"

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_supervisor.h"
#include "cli/commands/up.h"
#include "cli/installation/installation.h"
#include "cli/report/summary.h"
#include "cli/slurm/slurm_cluster.h"
#include "common/base/status_macros.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

constexpr absl::Duration kStatusEvery = absl::Seconds(10);
constexpr std::chrono::seconds kRequeueLimit{20};

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
  Subprocess::Options scontrol;
  scontrol.args = {"scontrol", "requeue", id};
  const absl::StatusOr<std::string> result = AskSlurm(std::move(scontrol), kRequeueLimit);
  if (result.ok()) {
    return console.Line(absl::StrCat("job ", id, " is queued again, and continues from its checkpoint"));
  }
  console.Error(absl::StrCat("`scontrol requeue ", id, "`: ", result.status().message(),
                             "; submit the job again with --resume=DIR, which is its checkpoint.directory"));
}

}  // namespace

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

}  // namespace weir
