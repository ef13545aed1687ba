#include "cli/slurm/slurm_task.h"

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/installation/task_environment.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/slurm/task_report.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"
#include "common/program/exit_codes.h"
#include "common/rpc/tls.h"
#include "common/system/clock.h"
#include "common/system/process.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

constexpr std::chrono::milliseconds kPortPoll{20};

absl::StatusOr<std::string> FromSlurm(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value != nullptr && *value != '\0') return value;
  return absl::FailedPreconditionError(
      absl::StrCat(variable, " is not set: srun starts `weir task`, inside a job of `weir slurm`"));
}

// SLURM ends each process of a step with SIGTERM, so a task that has ended so was meant to.
bool WasEnded(const ProcessExit& exit) { return exit.signal == SIGTERM || exit.code == kExitDrained; }

class Keeper {
 public:
  Keeper(const SlurmTask& task, std::string type, int index, std::string step, std::string node)
      : task_(task), type_(std::move(type)), index_(index), step_(std::move(step)), node_(std::move(node)) {}

  absl::StatusOr<int> Run();

 private:
  std::string name() const { return absl::StrCat(type_, ":", index_); }
  bool serves() const { return type_ == "ps"; }
  std::string PortFile() const { return absl::StrCat(task_.folder, "/ps-", index_, ".port"); }
  absl::StatusOr<std::unique_ptr<Subprocess>> Start() const;
  void Report(const TaskReport& report) const;
  void ReportStart(Subprocess& process);

  const SlurmTask& task_;
  const std::string type_;  // may be "evaluator"
  const int index_;
  const std::string step_, node_;
  std::string address_;  // of a server; port 0 until it has one
};

absl::StatusOr<std::unique_ptr<Subprocess>> Keeper::Start() const {
  Subprocess::Options process;
  process.args = task_.program;
  std::string jobs;
  if (serves()) {
    process.args.push_back(absl::StrCat("--port_file=", PortFile()));
    if (index_ == 0) process.args.push_back(absl::StrCat("--summary=", task_.folder, "/summary.json"));
    // A single address means the server itself: servers learn of each other from the workers that join.
    jobs = absl::StrCat(R"("ps":)", JsonList({address_}));
  } else {
    jobs = absl::StrCat(R"("ps":)", JsonList(task_.servers));
    // No process connects to a worker; the port stands for an address that the format requires.
    if (type_ == "worker") {
      absl::StrAppend(&jobs, R"(,"worker":{")", index_, R"(":)", JsonQuote(absl::StrCat(node_, ":1")), "}");
    }
  }
  const std::string certificates = absl::StrCat(task_.folder, "/certs");
  std::error_code ignored;
  const TlsFiles files = std::filesystem::exists(certificates, ignored)
                             ? TlsFilesIn(certificates, TaskIdentity(type_, index_))
                             : TlsFiles();
  SetTaskEnvironment(absl::StrCat("{", jobs, "}"), type_, index_, files, &process.environment);
  return Subprocess::Start(std::move(process));
}

void Keeper::Report(const TaskReport& report) const {
  if (task_.array) return;
  // One write, so that no line of the program comes between.
  std::printf("%s\n", ReportLine(report).c_str());
  std::fflush(stdout);
}

// Of a server: waits until it has its port, or has ended.
void Keeper::ReportStart(Subprocess& process) {
  TaskReport report{name(), step_, serves() ? "" : node_, std::nullopt};
  while (serves() && report.address.empty()) {
    std::ifstream file(PortFile());
    std::string port;
    if (std::getline(file, port)) {
      report.address = address_ = absl::StrCat(node_, ":", port);
    } else if (process.Wait(std::chrono::steady_clock::now() + kPortPoll).has_value()) {
      return;
    }
  }
  Report(report);
}

absl::StatusOr<int> Keeper::Run() {
  address_ = absl::StrCat(node_, ":0");
  std::error_code ignored;
  if (serves()) std::filesystem::remove(PortFile(), ignored);
  for (int restarts = 0;; ++restarts) {
    const absl::Time start = Clock::Real().Now();
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<Subprocess> process, Start());
    ReportStart(*process);
    TaskExit end;
    end.exit = process->Wait();
    end.task = name();
    end.seconds = absl::ToDoubleSeconds(Clock::Real().Now() - start);
    end.restarts = restarts;
    end.restarted = IsWorthRestart(end) && !WasEnded(end.exit) && restarts < task_.restart;
    Report({end.task, step_, address_, end});
    if (!end.restarted) return end.exit.status();
  }
}

}  // namespace

absl::StatusOr<int> RunSlurmTask(const SlurmTask& task) {
  const char* const variable = task.array ? "SLURM_ARRAY_TASK_ID" : "SLURM_PROCID";
  WEIR_ASSIGN_OR_RETURN(const std::string rank, FromSlurm(variable));
  WEIR_ASSIGN_OR_RETURN(const std::string step, FromSlurm("SLURM_STEP_ID"));
  WEIR_ASSIGN_OR_RETURN(const std::string node, FromSlurm("SLURMD_NODENAME"));
  int index = 0;
  if (!absl::SimpleAtoi(rank, &index) || index < 0) {
    return absl::FailedPreconditionError(absl::StrCat(variable, " is '", rank, "', not a task's number"));
  }
  const bool evaluates = task.type == "worker" && index >= task.workers;
  // The program gets SLURM's signals, too. This process stays to report how the program ended.
  BlockSignals({SIGTERM, SIGINT, SIGHUP});
  return Keeper(task, evaluates ? "evaluator" : task.type, evaluates ? 0 : index, step, node).Run();
}

}  // namespace weir
