// ./dev chaos --abuse: honest jobs of real processes beside strangers on the same machine, another user where
// this runs as root. The strangers abuse everything that the jobs' servers listen on. Insiders may join, and
// abuse that. Prints for each kind of abuse the effect on a job's throughput and its servers' memory, and
// whether a stranger read or changed anything. Then a job of fixed length, beside all kinds at once, must end
// as the job that nobody abuses does, with the same bits.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/rpc/tls.h"
#include "nlohmann/json.hpp"
#include "tests/chaos/abusers.h"
#include "tests/chaos/chaos_job.h"
#include "tests/chaos/grpc_attacker.h"
#include "tests/chaos/grpc_insider.h"
#include "tests/chaos/planted_links.h"
#include "tests/chaos/scratch_folder.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The share of its throughput that an honest job keeps at least, beside the same abusers whose target is
// another job; and the most additional memory of its servers.
constexpr double kLeastThroughput = 0.9;
constexpr double kMostMemory = 64e6;
constexpr uid_t kNobody = 65534;
constexpr uint32_t kServers = 2, kWorkers = 2;
constexpr int kAbusers = 2;
// Limits for a busy machine.
constexpr std::chrono::seconds kStartLimit{60}, kEndLimit{120};
// Abuse of the checkpoints' folder; this process does it itself.
constexpr char kLinks[] = "links";

bool IsInsider(const std::string& kind) {
  const auto& kinds = Insider::Kinds();
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

std::string Describe(const std::string& kind) {
  if (kind == kLinks) return "plants symbolic links where checkpoints go";
  return IsInsider(kind) ? "an insider " + Insider::Describe(kind) : Attacker::Describe(kind);
}

// ---- the abuser: this program again

std::atomic<bool> stop{false};

int BeAbuser(const std::string& kind, const Insider::Options& options, const std::string& http) {
  if (!IsInsider(kind) && getuid() == 0 &&
      (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0)) {
    std::fprintf(stderr, "cannot become another user\n");
    return 1;
  }
  // The abuse is not on the honest job's processor time.
  setpriority(PRIO_PROCESS, 0, 19);
  std::signal(SIGTERM, [](int) { stop = true; });
  Acts acts(Abusers::SayThatItBegins);
  if (IsInsider(kind)) {
    const auto insider = Insider::Create(options, &acts);
    if (!insider.ok()) {
      std::fprintf(stderr, "%s\n", std::string(insider.status().message()).c_str());
      return 1;
    }
    (*insider)->Run(kind, stop);
  } else {
    Attacker({options.servers, http}, &acts).Run(kind, stop);
  }
  Abusers::SayWhatWasDone(acts);
  _exit(0);  // calls may still be under way
}

// ---- the honest jobs

std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

double ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

nlohmann::json JobConfig(const std::string& folder, const std::string& mode) {
  nlohmann::json config = nlohmann::json::parse(R"({
    "name": "abused",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 128}, {"type": "relu"},
                         {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 32},
    "train": {"epochs": 1000000},
    "optimizer": {"type": "sgd", "learning_rate": 0.01},
    "checkpoint": {"every_seconds": 2, "keep": 2},
    "wire": {"transport": "tcp"}
  })");
  config["consistency"]["mode"] = mode;
  config["cluster"]["workers"] = kWorkers;
  config["checkpoint"]["directory"] = folder + "/runs";
  return config;
}

// Steps of some 20 ms, so that the job is long enough to be abused.
nlohmann::json FixedJobConfig(const std::string& folder) {
  nlohmann::json config = JobConfig(folder, "sync");
  config["train"] = {{"examples", 200 * kWorkers * 32}};
  config["debug"]["worker_delay"] = 0.015;
  return config;
}

struct Setting {
  ChaosPrograms programs;
  std::string self, folder;
  bool open = false, tls = false;
};

absl::StatusOr<std::unique_ptr<ChaosJob>> MakeJob(const Setting& setting, const std::string& folder,
                                                  const nlohmann::json& config) {
  std::filesystem::create_directories(folder + "/runs");
  ChaosJob::Options options;
  options.programs = setting.programs;
  options.folder = folder;
  options.config = config.dump();
  options.servers = kServers;
  options.workers = kWorkers;
  options.histories = false;
  options.server_args = {"--http_port=0"};
  options.token = !setting.open;
  options.tls = setting.tls;
  return ChaosJob::Create(std::move(options));
}

template <typename Ready>
absl::Status Await(const ChaosJob& job, const char* what, const Ready& ready) {
  const auto deadline = Clock::now() + kStartLimit;
  while (true) {
    const auto status = job.Status();
    if (status.ok() && ready(*status)) return absl::OkStatus();
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the job has not ", what));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

absl::Status AwaitPushes(const ChaosJob& job, uint64_t pushes) {
  return Await(job, "begun", [&](const v1::ClusterStatus& status) { return status.pushes() >= pushes; });
}

struct Window {
  double pushes_per_second = 0, most_memory = 0;
};

// The process has the processors only while no other wants them.
void GiveWay(pid_t pid) {
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    setpriority(PRIO_PROCESS, static_cast<id_t>(std::stoul(thread.path().filename())), 19);
  }
}

// A job without end, and the kinds of abuse one after another. The abusers have the processors of the job,
// which those of a real job would not have. So abuse is compared with the same abuse of a decoy: the servers
// of a second job, which give way to all others.
class Trial {
 public:
  Trial(const Setting& setting, double seconds) : setting_(setting), seconds_(seconds) {}

  absl::Status Start(const std::string& mode);
  // One kind of abuse: in turn none, of the decoy, of the job. An error: the job has ended.
  absl::Status Try(const std::string& kind);
  // The job must end normally: a last checkpoint, and 143.
  absl::Status End();
  int violations() const { return violations_; }

 private:
  absl::StatusOr<Window> Measure();
  // Beside abuse of this job or of the decoy.
  absl::StatusOr<Window> MeasureBeside(const std::string& kind, ChaosJob* target, AbuseReport* report);
  void Violation(const std::string& what) {
    std::printf("  VIOLATION: %s\n", what.c_str());
    ++violations_;
  }

  std::string DecoyFolder() const { return setting_.folder + "/decoy"; }

  const Setting setting_;
  const double seconds_;
  std::unique_ptr<ChaosJob> job_, decoy_;
  int violations_ = 0;
};

absl::Status Trial::Start(const std::string& mode) {
  std::filesystem::create_directories(setting_.folder + "/outside");
  std::ofstream(setting_.folder + "/outside/victim") << "unchanged";
  WEIR_ASSIGN_OR_RETURN(job_, MakeJob(setting_, setting_.folder, JobConfig(setting_.folder, mode)));
  WEIR_RETURN_IF_ERROR(job_->StartAll());
  WEIR_ASSIGN_OR_RETURN(decoy_, MakeJob(setting_, DecoyFolder(), JobConfig(DecoyFolder(), mode)));
  for (uint32_t i = 0; i < kServers; ++i) WEIR_RETURN_IF_ERROR(decoy_->Start(absl::StrCat("ps:", i)));
  WEIR_RETURN_IF_ERROR(Await(*decoy_, "a ps:0 that answers", [](const auto&) { return true; }));
  for (uint32_t i = 0; i < kServers; ++i) GiveWay(decoy_->pid(absl::StrCat("ps:", i)));
  return AwaitPushes(*job_, 100);
}

absl::StatusOr<Window> Trial::Measure() {
  Window window;
  WEIR_ASSIGN_OR_RETURN(const v1::ClusterStatus before, job_->Status());
  const auto start = Clock::now();
  double elapsed = 0;
  while (elapsed < seconds_) {
    std::this_thread::sleep_for(milliseconds(100));
    for (uint32_t i = 0; i < kServers; ++i) {
      window.most_memory = std::max(window.most_memory, ResidentBytes(job_->pid(absl::StrCat("ps:", i))));
    }
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  WEIR_ASSIGN_OR_RETURN(const v1::ClusterStatus after, job_->Status());
  elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  window.pushes_per_second = static_cast<double>(after.pushes() - before.pushes()) / elapsed;
  return window;
}

absl::StatusOr<Window> Trial::MeasureBeside(const std::string& kind, ChaosJob* target, AbuseReport* report) {
  const std::string& folder = target == job_.get() ? setting_.folder : DecoyFolder();
  PlantedLinks links(folder + "/runs", setting_.folder + "/outside");
  Abusers abusers(setting_.self, target);
  if (kind == kLinks) {
    report->acts += links.Plant();
  } else {
    WEIR_RETURN_IF_ERROR(abusers.Start(kind, kAbusers, IsInsider(kind)));
    WEIR_RETURN_IF_ERROR(abusers.AwaitBegin());
  }
  WEIR_ASSIGN_OR_RETURN(const Window window, Measure());
  WEIR_RETURN_IF_ERROR(abusers.End(report));
  return window;
}

absl::Status Trial::Try(const std::string& kind) {
  std::vector<double> of_quiet, of_decoyed;
  double quiet_memory = 0, memory = 0;
  AbuseReport sum, of_decoy;
  for (int turn = 0; turn < 3; ++turn) {
    WEIR_ASSIGN_OR_RETURN(const Window quiet, Measure());
    if (turn == 0) quiet_memory = quiet.most_memory;
    WEIR_ASSIGN_OR_RETURN(const Window decoyed, MeasureBeside(kind, decoy_.get(), &of_decoy));
    WEIR_ASSIGN_OR_RETURN(const Window abused, MeasureBeside(kind, job_.get(), &sum));
    memory = std::max(memory, abused.most_memory);
    of_quiet.push_back(abused.pushes_per_second / std::max(1.0, quiet.pushes_per_second));
    of_decoyed.push_back(abused.pushes_per_second / std::max(1.0, decoyed.pushes_per_second));
  }
  std::sort(of_quiet.begin(), of_quiet.end());
  std::sort(of_decoyed.begin(), of_decoyed.end());
  const double ratio = of_decoyed[of_decoyed.size() / 2], more = std::max(0.0, memory - quiet_memory);
  std::printf(
      "%-12s %7llu acts   throughput %.2f (%.2f to %.2f) of beside a decoy, %.2f of without   memory %.0f "
      "MB, "
      "+%.0f MB   %s%s\n",
      kind.c_str(), static_cast<unsigned long long>(sum.acts), ratio, of_decoyed.front(), of_decoyed.back(),
      of_quiet[of_quiet.size() / 2], memory / 1e6, more / 1e6, Describe(kind).c_str(), sum.Taken().c_str());
  if (sum.acts == 0) Violation("nothing was done");
  if (ratio < kLeastThroughput) Violation(absl::StrCat("throughput must stay at ", kLeastThroughput));
  if (more > kMostMemory) Violation("memory must stay within 64 MB");
  for (const auto& [what, count] : sum.taken) {
    // Without a token a process that reaches a server may ask to join, as any worker does.
    if (IsInsider(kind) || (setting_.open && what == "join")) continue;
    Violation(absl::StrCat(what, ": ", count, " calls of a stranger were taken"));
  }
  if (ReadFile(setting_.folder + "/outside/victim") != "unchanged")
    Violation("a file outside of the job was written to");
  const auto files = std::distance(std::filesystem::directory_iterator(setting_.folder + "/outside"), {});
  if (files != 1) Violation(absl::StrCat(files - 1, " files were made outside of the job"));
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Trial::End() {
  WEIR_RETURN_IF_ERROR(job_->TakeCheckpoint());
  job_->Signal("ps:0", SIGTERM);
  const auto exit = job_->WaitForExit("ps:0", Clock::now() + std::chrono::seconds(30));
  if (!exit.has_value()) return absl::DeadlineExceededError("ps:0 does not end after SIGTERM");
  if (exit->status() != 143) Violation(absl::StrCat("ps:0 ended with ", exit->status(), ", not 143"));
  return absl::OkStatus();
}

// The summary of a job of fixed length, in a folder of its own, beside an abuser of each of these kinds. The
// strangers are there before the workers. The insiders come once all workers have joined, and the job waits
// for them.
absl::StatusOr<nlohmann::json> RunFixedJob(const Setting& setting, const std::string& name,
                                           const std::vector<std::string>& kinds, AbuseReport* report) {
  const std::string folder = setting.folder + "/" + name;
  WEIR_ASSIGN_OR_RETURN(const auto job, MakeJob(setting, folder, FixedJobConfig(folder)));
  for (uint32_t i = 0; i < kServers; ++i) WEIR_RETURN_IF_ERROR(job->Start(absl::StrCat("ps:", i)));
  WEIR_RETURN_IF_ERROR(Await(*job, "a ps:0 that answers", [](const auto&) { return true; }));
  Abusers abusers(setting.self, job.get());
  for (const bool insiders : {false, true}) {
    if (insiders) {
      for (uint32_t i = 0; i < kWorkers; ++i) WEIR_RETURN_IF_ERROR(job->Start(absl::StrCat("worker:", i)));
      WEIR_RETURN_IF_ERROR(AwaitPushes(*job, 1));
      job->Signal("worker:1", SIGSTOP);
    }
    for (const std::string& kind : kinds) {
      if (kind == kLinks || IsInsider(kind) != insiders) continue;
      WEIR_RETURN_IF_ERROR(abusers.Start(kind, 1, insiders));
    }
    WEIR_RETURN_IF_ERROR(abusers.AwaitBegin());
  }
  job->Signal("worker:1", SIGCONT);
  const auto deadline = Clock::now() + kEndLimit;
  for (const std::string& task : job->tasks()) {
    const auto exit = job->WaitForExit(task, deadline);
    if (!exit.has_value()) return absl::DeadlineExceededError(absl::StrCat(task, " does not end"));
    if (!exit->ok()) return absl::InternalError(absl::StrCat(task, " ended with ", exit->ToString()));
  }
  WEIR_RETURN_IF_ERROR(abusers.End(report));
  return job->Summary();
}

// A sync job that is abused must lose nothing: the bits depend on each gradient.
absl::Status CompareFixedJobs(const Setting& setting, const std::vector<std::string>& kinds) {
  AbuseReport report;
  WEIR_ASSIGN_OR_RETURN(const nlohmann::json alone, RunFixedJob(setting, "alone", {}, &report));
  WEIR_ASSIGN_OR_RETURN(const nlohmann::json abused, RunFixedJob(setting, "abused", kinds, &report));
  std::printf("all at once  %7llu acts   a sync job of 200 steps beside them%s\n",
              static_cast<unsigned long long>(report.acts), report.Taken().c_str());
  for (const char* field : {"examples", "pushes", "weights_sha256"}) {
    if (!alone.contains(field)) return absl::InternalError(absl::StrCat("the summary lacks ", field));
    if (abused.value(field, nlohmann::json()) == alone[field]) continue;
    return absl::InternalError(absl::StrCat(field, " is ", abused.value(field, nlohmann::json()).dump(),
                                            ", of the job alone ", alone[field].dump()));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Honest jobs beside strangers and insiders who abuse all that the jobs' servers listen on.");
  std::string abuser, http, mode = "async";
  std::vector<std::string> kinds;
  Setting setting;
  Insider::Options target;
  double seconds = 4;
  app.add_option("--kinds", kinds, "Kinds of abuse. Default: all.")->delimiter(',');
  app.add_option("--mode", mode, "Of the timed job.")->check(CLI::IsMember({"sync", "bounded", "async"}));
  app.add_option("--seconds", seconds, "Length of a window; each kind takes nine. 0: no timed job.")
      ->check(CLI::Range(0.0, 600.0));
  app.add_flag("--open", setting.open, "The jobs have no token.");
  app.add_flag("--tls", setting.tls, "The jobs have TLS.");
  app.add_option("--ps_server", setting.programs.ps_server, "The program.");
  app.add_option("--worker", setting.programs.worker, "The program.");
  app.add_option("--abuser", abuser)->group("");
  app.add_option("--servers", target.servers)->delimiter(',')->group("");
  app.add_option("--http", http)->group("");
  app.add_option("--config", target.config_path)->group("");
  app.add_option("--token_file", target.token_path)->group("");
  AddTlsFlags(&app, &target.tls);
  CLI11_PARSE(app, argc, argv);
  if (!abuser.empty()) return BeAbuser(abuser, target, http);

  if (kinds.empty()) {
    kinds = Attacker::Kinds();
    kinds.insert(kinds.end(), Insider::Kinds().begin(), Insider::Kinds().end());
    kinds.push_back(kLinks);
  }
  if (getuid() != 0)
    std::printf("SKIPPED: another user: only root can become one; the strangers are this user\n");
  setting.self = std::filesystem::canonical("/proc/self/exe");
  setting.folder = MakeScratchFolder("weir-abuse");
  if (setting.folder.empty()) {
    std::fprintf(stderr, "error: no folder can be made\n");
    return 1;
  }
  Trial trial(setting, seconds);
  const absl::Status run = [&]() -> absl::Status {
    if (seconds > 0) {
      WEIR_RETURN_IF_ERROR(trial.Start(mode));
      for (const std::string& kind : kinds) WEIR_RETURN_IF_ERROR(trial.Try(kind));
      WEIR_RETURN_IF_ERROR(trial.End());
    }
    return CompareFixedJobs(setting, kinds);
  }();
  if (!run.ok()) std::printf("VIOLATION: the job: %s\n", std::string(run.message()).c_str());
  const int violations = trial.violations() + (run.ok() ? 0 : 1);
  std::printf("violations: %d\n", violations);
  if (violations > 0) {
    std::printf("logs: %s\n", setting.folder.c_str());
    return 1;
  }
  std::filesystem::remove_all(setting.folder);
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }
