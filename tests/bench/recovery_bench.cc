// ./dev bench recovery: what the loss of tasks costs a job with a large model, and what the preparation for a
// loss costs. The servers are real, and the workers only wait, push and pull, on this machine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/system/file_system.h"
#include "tests/chaos/chaos_job.h"

namespace weir {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::seconds kHangLimit{60};
constexpr uint32_t kServers = 2, kWorkers = 2;

struct Mode {
  const char* name;
  const char* consistency;
  bool log;
};
constexpr Mode kSync = {"sync", "sync", false};
constexpr Mode kAsync = {"async", "async", false};
constexpr Mode kAsyncLog = {"async with the log", "async", true};

struct Options {
  ChaosPrograms programs;
  double minutes = 10, every = 60, pair_seconds = 30, compute_seconds = 0.06;
  int kills = 3, pairs = 5;
  int64_t elements = 25'000'000;
  std::string json_file;
};

double Since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// A job that never ends by itself. `checkpoint`: that member of its config, without the directory.
class Job {
 public:
  Job(const Options& options, const Mode& mode, const json& checkpoint) : mode_(mode) {
    folder_ = (std::filesystem::temp_directory_path() / "weir-recovery-XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) std::abort();
    json config = json::parse(R"({
      "name": "recovery",
      "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
      "data": {"format": "digits", "batch_size": 1},
      "train": {"examples": 1000000000000},
      "optimizer": {"type": "momentum", "learning_rate": 1e-6},
      "cluster": {"server_wait_seconds": 60}
    })");
    config["consistency"]["mode"] = mode.consistency;
    if (mode.log) config["server"]["durability"] = "log";
    config["cluster"]["workers"] = kWorkers;
    config["checkpoint"] = checkpoint;
    config["checkpoint"]["directory"] = folder_ + "/runs";
    setup_.programs = options.programs;
    setup_.worker_args = {absl::StrCat("--elements=", options.elements),
                          absl::StrCat("--compute_seconds=", options.compute_seconds)};
    setup_.folder = folder_;
    setup_.config = config.dump(2);
    setup_.servers = kServers;
    setup_.workers = kWorkers;
  }
  ~Job() {
    job_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Returns when the job runs evenly.
  absl::Status Start() {
    WEIR_ASSIGN_OR_RETURN(job_, ChaosJob::Create(setup_));
    WEIR_RETURN_IF_ERROR(job_->StartAll());
    return Await([](const v1::ClusterStatus& status) { return status.step() >= 10; }).status();
  }

  absl::StatusOr<v1::ClusterStatus> Await(const std::function<bool(const v1::ClusterStatus&)>& wanted) {
    const auto deadline = Clock::now() + kHangLimit;
    absl::StatusOr<v1::ClusterStatus> status;
    do {
      status = job_->Status();
      if (status.ok()) {
        NoteCheckpoint(status->checkpoint());
        if (status->state() == v1::RUNNING && wanted(*status)) return status;
      }
      for (const std::string& task : job_->tasks()) {
        const auto exit = job_->WaitForExit(task, Clock::now());
        if (!exit.has_value()) continue;
        return absl::InternalError(absl::StrCat(mode_.name, ": ", task, " ended with ", exit->ToString(),
                                                "; it said:\n", job_->Log(task)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (Clock::now() < deadline);
    return absl::DeadlineExceededError(
        absl::StrCat(mode_.name, ": waited in vain; the last status: ",
                     status.ok() ? status->ShortDebugString() : status.status().ToString()));
  }
  absl::StatusOr<v1::ClusterStatus> AwaitRunning() {
    return Await([](const v1::ClusterStatus&) { return true; });
  }

  // Steps that were done and not lost again.
  absl::StatusOr<double> UsefulSteps() {
    WEIR_ASSIGN_OR_RETURN(const auto status, AwaitRunning());
    if (mode_.consistency == std::string("sync")) return static_cast<double>(status.step());
    // A server's version counts the updates in its weights: no lost updates, but updates that were done
    // again.
    int64_t newest = 0;
    uint64_t versions = 0;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      std::ifstream steps(job_->HistoryPath(absl::StrCat("worker:", worker)));
      uint64_t sum = 0;
      for (int64_t ns; steps >> ns >> sum;) {
        if (ns < newest) continue;
        newest = ns;
        versions = sum;
      }
    }
    return static_cast<double>(versions) / kServers / kWorkers;
  }

  struct Loss {
    // The time from SIGKILL until the process listens, and from then until the first acknowledgement of a
    // step to a worker, whenever the step began.
    double restart = 0, recovery = 0;
  };
  // Kills a server and starts it again at once.
  absl::StatusOr<Loss> Lose(const std::string& server) {
    const auto start = Clock::now();
    job_->Kill(server);
    WEIR_RETURN_IF_ERROR(job_->Start(server));
    while (job_->Log(server).find(" listens on ") == std::string::npos) {
      if (Clock::now() > start + kHangLimit) return absl::DeadlineExceededError(server + " did not start");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto listens = Clock::now();
    while (Clock::now() < listens + kHangLimit) {
      for (uint32_t worker = 0; worker < kWorkers; ++worker) {
        std::ifstream steps(job_->HistoryPath(absl::StrCat("worker:", worker)));
        for (int64_t ns; steps >> ns;) {
          steps.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
          const Clock::time_point at{std::chrono::nanoseconds(ns)};
          if (at > listens) return Loss{Seconds(listens - start).count(), Seconds(at - listens).count()};
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return absl::DeadlineExceededError(absl::StrCat("no step after the loss of ", server));
  }
  absl::Status Restart(const std::string& task) {
    job_->Kill(task);
    return job_->Start(task);
  }
  absl::Status TakeCheckpoint() { return job_->TakeCheckpoint(); }

  // Waits until `end`.
  void RunUntil(Clock::time_point end) {
    while (Clock::now() < end) {
      const auto status = job_->Status();
      if (status.ok()) NoteCheckpoint(status->checkpoint());
      std::this_thread::sleep_for(std::min<Clock::duration>(
          std::chrono::milliseconds(250), std::max(end - Clock::now(), Clock::duration{0})));
    }
  }
  // Complete checkpoints that were seen.
  size_t checkpoints() const { return checkpoints_.size(); }

 private:
  void NoteCheckpoint(const std::string& folder) {
    if (!folder.empty()) checkpoints_.insert(folder);
  }

  const Mode mode_;
  std::string folder_;
  ChaosJob::Options setup_;
  std::unique_ptr<ChaosJob> job_;
  std::set<std::string> checkpoints_;
};

// The measured values and their targets.
class Report {
 public:
  void Add(const std::string& what, double value, double bound, bool at_least, const std::string& unit,
           json details) {
    const bool met = at_least ? value >= bound : value <= bound;
    met_ = met_ && met;
    std::printf("%-78s %8.3f %-2s %s %.2f%s\n", what.c_str(), value, unit.c_str(),
                at_least ? ">=" : "<=", bound, met ? "" : "  MISSED");
    std::fflush(stdout);
    rows_.push_back({{"what", what},
                     {"value", value},
                     {"bound", bound},
                     {"at_least", at_least},
                     {"unit", unit},
                     {"met", met},
                     {"details", std::move(details)}});
  }
  bool met() const { return met_; }
  const json& rows() const { return rows_; }

 private:
  bool met_ = true;
  json rows_ = json::array();
};

absl::Status MeasureLosses(const Options& options, const Mode& mode, Report* report) {
  Job job(options, mode, json::object());
  WEIR_RETURN_IF_ERROR(job.Start());
  WEIR_RETURN_IF_ERROR(job.Await([](const auto& status) { return !status.checkpoint().empty(); }).status());
  for (const std::string server : {"ps:1", "ps:0"}) {
    std::vector<double> restart, recovery;
    for (int kill = 0; kill < options.kills; ++kill) {
      // Each kill comes at a different time after the last checkpoint.
      job.RunUntil(Clock::now() + std::chrono::milliseconds(2500 * (kill + 1)));
      WEIR_RETURN_IF_ERROR(job.AwaitRunning().status());
      WEIR_ASSIGN_OR_RETURN(const Job::Loss loss, job.Lose(server));
      restart.push_back(loss.restart);
      recovery.push_back(loss.recovery);
    }
    const std::string text =
        absl::StrFormat("%s: %s killed, first step after its restart (which took %.3f s), worst of %d",
                        mode.name, server, Median(restart), options.kills);
    report->Add(text, *std::max_element(recovery.begin(), recovery.end()), 2, false, "s",
                {{"mode", mode.name}, {"victim", server}, {"restart_s", restart}, {"recovery_s", recovery}});
  }
  return absl::OkStatus();
}

// Returns the useful steps per second over `seconds`; calls `middle` in the middle.
absl::StatusOr<double> Rate(Job* job, double seconds, const std::function<absl::Status()>& middle) {
  WEIR_ASSIGN_OR_RETURN(const double before, job->UsefulSteps());
  const auto start = Clock::now();
  const auto half = std::chrono::duration_cast<Clock::duration>(Seconds(seconds / 2));
  job->RunUntil(start + half);
  WEIR_RETURN_IF_ERROR(middle());
  job->RunUntil(start + 2 * half);
  WEIR_ASSIGN_OR_RETURN(const double after, job->UsefulSteps());
  return (after - before) / Since(start);
}

absl::Status Nothing() { return absl::OkStatus(); }

// Times with a kill and times without, which are half as long, alternate, so that the machine is the same for
// both.
absl::Status MeasureGoodput(const Options& options, const Mode& mode, double bound, Report* report) {
  const std::vector<std::string> victims = {"ps:1", "worker:1", "ps:0"};
  const int kills = std::max(1, static_cast<int>(options.minutes * 60 / options.every));
  std::vector<double> with, without;
  Job job(options, mode, json::object());
  WEIR_RETURN_IF_ERROR(job.Start());
  const size_t checkpoints = job.checkpoints();
  for (int kill = 0; kill < kills; ++kill) {
    WEIR_ASSIGN_OR_RETURN(without.emplace_back(), Rate(&job, options.every / 2, Nothing));
    const std::string& victim = victims[kill % victims.size()];
    WEIR_ASSIGN_OR_RETURN(with.emplace_back(),
                          Rate(&job, options.every, [&] { return job.Restart(victim); }));
  }
  const double fault_free = std::accumulate(without.begin(), without.end(), 0.0) / kills;
  const double goodput = std::accumulate(with.begin(), with.end(), 0.0) / kills;
  const double interval =
      1.5 * kills * options.every / std::max<double>(1, static_cast<double>(job.checkpoints() - checkpoints));
  report->Add(absl::StrFormat("%s: goodput, a kill every %.0f s, %d in all, steps of %.0f ms", mode.name,
                              options.every, kills, 1000 / fault_free),
              goodput / fault_free, bound, true, "x",
              {{"mode", mode.name},
               {"steps_per_second", with},
               {"steps_per_second_without_faults", without},
               {"seconds_between_checkpoints", interval}});
  std::printf("    a checkpoint every %.1f s, as Weir chose\n", interval);
  return absl::OkStatus();
}

// Compares times with one checkpoint and with none, in turn. The job takes no checkpoint by itself.
absl::Status MeasureCheckpoints(const Options& options, const Mode& mode, Report* report) {
  std::vector<double> ratios, with, without;
  Job job(options, mode, json{{"every_seconds", 86400}});
  WEIR_RETURN_IF_ERROR(job.Start());
  // The first checkpoint allocates the memory for later ones.
  WEIR_RETURN_IF_ERROR(job.TakeCheckpoint());
  for (int pair = 0; pair < options.pairs; ++pair) {
    for (const bool checkpoint : {pair % 2 == 0, pair % 2 != 0}) {
      const auto middle = [&] { return checkpoint ? job.TakeCheckpoint() : absl::OkStatus(); };
      WEIR_ASSIGN_OR_RETURN((checkpoint ? with : without).emplace_back(),
                            Rate(&job, options.pair_seconds, middle));
    }
    ratios.push_back(with.back() / without.back());
  }
  report->Add(absl::StrFormat("%s: throughput, a checkpoint every %.0f s against none, median of %d pairs",
                              mode.name, options.pair_seconds, options.pairs),
              Median(ratios), 0.97, true, "x",
              {{"mode", mode.name}, {"with", with}, {"without", without}, {"ratios", ratios}});
  return absl::OkStatus();
}

// Returns the speed, in MB/s, of a file that is written like a server's log: half a model, then a sync,
// repeatedly.
absl::StatusOr<double> DiskRate(int64_t elements) {
  FileSystem& files = FileSystem::Posix();
  const std::string path =
      (std::filesystem::temp_directory_path() / absl::StrCat("weir-recovery-disk-", getpid())).string();
  const std::string half(static_cast<size_t>(elements) * sizeof(float) / 2, 'x');
  constexpr int kTimes = 16;
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  const auto start = Clock::now();
  absl::Status status;
  for (int i = 0; i < kTimes && status.ok(); ++i) {
    status = file->Append(half);
    if (status.ok()) status = file->Sync();
  }
  const double seconds = Since(start);
  files.Remove(path).IgnoreError();
  if (!status.ok()) return status;
  return kTimes * static_cast<double>(half.size()) * 1e-6 / seconds;
}

double LoadAverage() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

int Main(const Options& options, const std::vector<std::string>& rows) {
  const auto wanted = [&rows](const std::string& row) {
    return rows.empty() || std::find(rows.begin(), rows.end(), row) != rows.end();
  };
  const double load = LoadAverage();
  const absl::StatusOr<double> disk = DiskRate(options.elements);
  if (!disk.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(disk.status().message()).c_str());
    return 1;
  }
  std::printf(
      "%u servers, %u workers, a model of %.0f MB, momentum, %u cores, load before %.1f; the disk takes %.0f "
      "MB/s\n",
      kServers, kWorkers, static_cast<double>(options.elements) * 4e-6, std::thread::hardware_concurrency(),
      load, *disk);
  Report report;
  absl::Status status;
  // Sync goes back. Async continues without the lost pushes, or, with the log, with all pushes.
  for (const Mode& mode : {kSync, kAsync, kAsyncLog}) {
    if (status.ok() && wanted("recovery")) status = MeasureLosses(options, mode, &report);
  }
  for (const auto& [mode, bound] : {std::pair(kSync, 0.90), std::pair(kAsyncLog, 0.95)}) {
    if (status.ok() && wanted("goodput")) status = MeasureGoodput(options, mode, bound, &report);
  }
  for (const Mode& mode : {kSync, kAsync}) {
    if (status.ok() && wanted("checkpoints")) status = MeasureCheckpoints(options, mode, &report);
  }
  if (!options.json_file.empty()) {
    std::ofstream(options.json_file) << json{{"cores", std::thread::hardware_concurrency()},
                                             {"load_before", load},
                                             {"disk_mb_per_second", *disk},
                                             {"elements", options.elements},
                                             {"rows", report.rows()}}
                                            .dump(2)
                                     << "\n";
  }
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  std::printf("%s\n", report.met() ? "all targets are met" : "a target was missed");
  return report.met() ? 0 : 1;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::Options options;
  std::vector<std::string> rows;
  CLI::App app("What the loss of tasks costs, and being ready for it.");
  app.add_option("--rows", rows, "Some only: recovery, goodput, checkpoints")
      ->delimiter(',')
      ->check(CLI::IsMember({"recovery", "goodput", "checkpoints"}));
  app.add_option("--minutes", options.minutes, "Of goodput with kills, and half as long without")
      ->check(CLI::Range(0.05, 600.0));
  app.add_option("--every", options.every, "Seconds between kills")->check(CLI::Range(1.0, 3600.0));
  app.add_option("--kills", options.kills, "Of each server, to time its recovery")->check(CLI::Range(1, 100));
  app.add_option("--pairs", options.pairs, "Of runs with checkpoints and without")->check(CLI::Range(1, 100));
  app.add_option("--pair_seconds", options.pair_seconds,
                 "Of each run of a pair, which has one checkpoint or none")
      ->check(CLI::Range(1.0, 3600.0));
  app.add_option("--compute_seconds", options.compute_seconds, "How long a worker takes for a gradient")
      ->check(CLI::Range(0.0, 60.0));
  app.add_option("--elements", options.elements, "Of the model, 4 bytes each")->check(CLI::PositiveNumber);
  app.add_option("--json", options.json_file, "Also writes all numbers there");
  app.add_option("--ps_server", options.programs.ps_server, "The program");
  app.add_option("--worker", options.programs.worker, "The program recovery_worker");
  CLI11_PARSE(app, argc, argv);
  return weir::Main(options, rows);
}
