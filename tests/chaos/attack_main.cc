// ./dev chaos --attack: an honest job of real processes beside a stranger on the same machine, another user
// where this runs as root, that abuses everything that the job's servers listen on. Prints for each kind of
// abuse the effect on the job's throughput and its servers' memory, and whether the stranger read or changed
// anything.
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
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/chaos/chaos_job.h"
#include "tests/chaos/grpc_attacker.h"
#include "tests/chaos/scratch_folder.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The least share of its throughput that an honest job keeps, and the most additional memory of its servers.
constexpr double kLeastThroughput = 0.9;
constexpr double kMostMemory = 64e6;
constexpr uid_t kNobody = 65534;
constexpr uint32_t kServers = 2, kWorkers = 4;
constexpr int kAttackers = 2;
// Abuse of the checkpoints' folder; this process does it itself.
constexpr char kLinks[] = "links";

// ---- the stranger: this program again

std::atomic<bool> stop{false};

int BeStranger(const std::string& kind, const Attacker::Target& target) {
  if (getuid() == 0 &&
      (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0)) {
    std::fprintf(stderr, "cannot become another user\n");
    return 1;
  }
  // The attack is not on the honest job's processor time.
  setpriority(PRIO_PROCESS, 0, 19);
  std::signal(SIGTERM, [](int) { stop = true; });
  Attacker attacker(target);
  attacker.Run(kind, stop);
  const nlohmann::json said = {{"calls", attacker.calls()}, {"taken", attacker.taken()}};
  std::printf("%s\n", said.dump().c_str());
  std::fflush(stdout);
  _exit(0);  // calls may still be under way
}

// ---- the honest job

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
    "name": "attacked",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 128}, {"type": "relu"},
                         {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 32},
    "train": {"epochs": 1000000},
    "optimizer": {"type": "sgd", "learning_rate": 0.01},
    "checkpoint": {"every_seconds": 2, "keep": 2}
  })");
  config["consistency"]["mode"] = mode;
  config["cluster"]["workers"] = kWorkers;
  config["checkpoint"]["directory"] = folder + "/runs";
  return config;
}

struct Window {
  double pushes_per_second = 0, most_memory = 0;
};

class Trial {
 public:
  Trial(std::string self, std::string folder, double seconds)
      : self_(std::move(self)), folder_(std::move(folder)), seconds_(seconds) {}

  absl::Status Start(const ChaosPrograms& programs, const std::string& mode, bool open);
  // One kind of abuse, alternating with quiet. An error: the job has ended.
  absl::Status Try(const std::string& kind);
  // The job must end normally: a last checkpoint, and 143.
  absl::Status End();
  int violations() const { return violations_; }

 private:
  absl::StatusOr<Window> Measure();
  absl::StatusOr<std::vector<std::unique_ptr<Subprocess>>> Attack(const std::string& kind,
                                                                  std::vector<std::string>* said);
  void PlantLinks();
  void RemoveLinks();
  void Violation(const std::string& what) {
    std::printf("  VIOLATION: %s\n", what.c_str());
    ++violations_;
  }

  const std::string self_, folder_;
  const double seconds_;
  bool open_ = false;
  std::unique_ptr<ChaosJob> job_;
  Attacker::Target target_;
  std::vector<std::filesystem::path> links_;
  int violations_ = 0;
};

absl::Status Trial::Start(const ChaosPrograms& programs, const std::string& mode, bool open) {
  open_ = open;
  std::filesystem::create_directories(folder_ + "/runs");
  std::filesystem::create_directories(folder_ + "/outside");
  std::ofstream(folder_ + "/outside/victim") << "unchanged";
  ChaosJob::Options options;
  options.programs = programs;
  options.folder = folder_;
  options.config = JobConfig(folder_, mode).dump();
  options.servers = kServers;
  options.workers = kWorkers;
  options.histories = false;
  options.server_args = {"--http_port=0"};
  options.token = !open;
  WEIR_ASSIGN_OR_RETURN(job_, ChaosJob::Create(std::move(options)));
  WEIR_RETURN_IF_ERROR(job_->StartAll());
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  while (true) {
    const auto status = job_->Status();
    if (status.ok() && status->pushes() > 100) break;
    if (Clock::now() > deadline) return absl::DeadlineExceededError("the job does not start");
    std::this_thread::sleep_for(milliseconds(50));
  }
  for (uint32_t i = 0; i < kServers; ++i) target_.servers.push_back(job_->address(absl::StrCat("ps:", i)));
  const std::string log = job_->Log("ps:0"), mark = "metrics at http://";
  const size_t at = log.find(mark);
  if (at == std::string::npos) return absl::InternalError("ps:0 does not say where its metrics are");
  const size_t begin = at + mark.size();
  target_.http = log.substr(begin, log.find('/', begin) - begin);
  return absl::OkStatus();
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

absl::StatusOr<std::vector<std::unique_ptr<Subprocess>>> Trial::Attack(const std::string& kind,
                                                                       std::vector<std::string>* said) {
  std::vector<std::unique_ptr<Subprocess>> strangers;
  said->assign(kAttackers, "");
  for (int i = 0; i < kAttackers; ++i) {
    Subprocess::Options process;
    process.args = {self_, "--stranger=" + kind, "--servers=" + absl::StrJoin(target_.servers, ","),
                    "--http=" + target_.http};
    process.on_line = [line = &(*said)[i]](absl::string_view text) { *line = std::string(text); };
    WEIR_ASSIGN_OR_RETURN(strangers.emplace_back(), Subprocess::Start(std::move(process)));
  }
  return strangers;
}

void Trial::PlantLinks() {
  // The paths of the next checkpoints and of the coordinator's own files.
  std::vector<std::string> names = {"coordinator.json", "coordinator.json.tmp", "manifest.json", "claim",
                                    "lock"};
  uint64_t newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/runs")) {
    uint64_t step = 0;
    const std::string text = entry.path().filename().string();
    absl::string_view name = text;
    if (absl::ConsumePrefix(&name, "step-") && absl::SimpleAtoi(name, &step)) newest = std::max(newest, step);
  }
  for (uint64_t step = newest + 1; step < newest + 4000; ++step) {
    std::string number = absl::StrCat(step);
    number.insert(0, 8 - std::min<size_t>(8, number.size()), '0');
    names.push_back("step-" + number);
  }
  for (const std::string& name : names) {
    const std::filesystem::path link = folder_ + "/runs/" + name;
    std::error_code error;
    const bool file = name.rfind("step-", 0) != 0;
    std::filesystem::create_symlink(folder_ + (file ? "/outside/victim" : "/outside"), link, error);
    if (!error) links_.push_back(link);
  }
}

void Trial::RemoveLinks() {
  for (const auto& link : links_) {
    std::error_code error;
    if (std::filesystem::is_symlink(link, error)) std::filesystem::remove(link, error);
  }
  links_.clear();
}

absl::Status Trial::Try(const std::string& kind) {
  std::vector<double> ratios;
  double quiet_memory = 0, memory = 0;
  uint64_t calls = 0;
  std::map<std::string, uint64_t> taken;
  for (int turn = 0; turn < 3; ++turn) {
    WEIR_ASSIGN_OR_RETURN(const Window quiet, Measure());
    if (turn == 0) quiet_memory = quiet.most_memory;
    std::vector<std::string> said;
    std::vector<std::unique_ptr<Subprocess>> strangers;
    if (kind == kLinks) {
      PlantLinks();
      calls += links_.size();
    } else {
      WEIR_ASSIGN_OR_RETURN(strangers, Attack(kind, &said));
    }
    WEIR_ASSIGN_OR_RETURN(const Window attacked, Measure());
    for (auto& stranger : strangers) stranger->Signal(SIGTERM);
    for (auto& stranger : strangers) {
      if (!stranger->Wait(Clock::now() + std::chrono::seconds(10)).has_value()) {
        return absl::InternalError("a stranger does not end");
      }
    }
    RemoveLinks();
    for (const std::string& line : said) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) return absl::InternalError(absl::StrCat("a stranger failed: ", line));
      calls += json["calls"].get<uint64_t>();
      for (const auto& [what, count] : json["taken"].items()) taken[what] += count.get<uint64_t>();
    }
    memory = std::max(memory, attacked.most_memory);
    ratios.push_back(attacked.pushes_per_second / std::max(1.0, quiet.pushes_per_second));
  }
  std::sort(ratios.begin(), ratios.end());
  const double ratio = ratios[ratios.size() / 2], more = std::max(0.0, memory - quiet_memory);
  std::printf(
      "%-12s %7llu acts   throughput %.2f (%.2f to %.2f) of without   memory +%.0f MB   %s\n", kind.c_str(),
      static_cast<unsigned long long>(calls), ratio, ratios.front(), ratios.back(), more / 1e6,
      kind == kLinks ? "plants symbolic links where checkpoints go" : Attacker::Describe(kind).c_str());
  if (calls == 0) Violation("the stranger did nothing");
  if (ratio < kLeastThroughput) Violation(absl::StrCat("throughput must stay at ", kLeastThroughput));
  if (more > kMostMemory) Violation("memory must stay within 64 MB");
  for (const auto& [what, count] : taken) {
    // Without a token a process that reaches a server may ask to join, as any worker does.
    if (open_ && what == "join") continue;
    Violation(absl::StrCat(what, ": ", count, " calls of a stranger were taken"));
  }
  if (ReadFile(folder_ + "/outside/victim") != "unchanged")
    Violation("a file outside of the job was written to");
  const auto files = std::distance(std::filesystem::directory_iterator(folder_ + "/outside"), {});
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

int Main(int argc, char** argv) {
  CLI::App app("An honest job beside a stranger who abuses all that its servers listen on.");
  std::string stranger, http, mode = "async";
  std::vector<std::string> servers, kinds;
  ChaosPrograms programs;
  double seconds = 4;
  bool open = false;
  app.add_option("--kinds", kinds, "Kinds of abuse. Default: all.")->delimiter(',');
  app.add_option("--mode", mode, "Of the job.")->check(CLI::IsMember({"sync", "bounded", "async"}));
  app.add_option("--seconds", seconds, "Length of a window; each kind takes six.")
      ->check(CLI::Range(0.5, 600.0));
  app.add_flag("--open", open, "The job has no token.");
  app.add_option("--ps_server", programs.ps_server, "The program.");
  app.add_option("--worker", programs.worker, "The program.");
  app.add_option("--stranger", stranger)->group("");
  app.add_option("--servers", servers)->delimiter(',')->group("");
  app.add_option("--http", http)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!stranger.empty()) return BeStranger(stranger, {servers, http});

  if (kinds.empty()) {
    kinds = Attacker::Kinds();
    kinds.push_back(kLinks);
  }
  if (getuid() != 0)
    std::printf("SKIPPED: another user: only root can become one; the stranger is this user\n");
  const std::string folder = MakeScratchFolder("weir-attack");
  if (folder.empty()) {
    std::fprintf(stderr, "error: no folder can be made\n");
    return 1;
  }
  Trial trial(std::filesystem::canonical("/proc/self/exe"), folder, seconds);
  const absl::Status run = [&]() -> absl::Status {
    WEIR_RETURN_IF_ERROR(trial.Start(programs, mode, open));
    for (const std::string& kind : kinds) WEIR_RETURN_IF_ERROR(trial.Try(kind));
    return trial.End();
  }();
  if (!run.ok()) std::printf("VIOLATION: the job: %s\n", std::string(run.message()).c_str());
  const int violations = trial.violations() + (run.ok() ? 0 : 1);
  std::printf("violations: %d\n", violations);
  if (violations > 0) {
    std::printf("logs: %s\n", folder.c_str());
    return 1;
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }
