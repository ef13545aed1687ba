#include "tests/chaos/chaos.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/system/file_system.h"
#include "ps_server/process/replay.h"
#include "tests/chaos/small_disk.h"
#include "tests/chaos/table_jobs.h"
#include "tests/history/history_checker.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
using Path = ChaosJob::Options::Path;
using std::chrono::milliseconds;

// The longest time without progress once faults are healed; generous, for a busy machine.
constexpr std::chrono::seconds kHangLimit{60};
// Shorter. ps:0 may get a worker's Leave only as a repeated copy, so that the worker has no answer. The
// worker then looks this long for a ps:0 that may have ended well.
constexpr double kServerWaitSeconds = 30;
constexpr milliseconds kPoll{20};
constexpr uint64_t kSteps = 200;
constexpr uint32_t kParts = 4, kBatch = 8;
// No faults after this step: a killed task must have a job to come back to.
constexpr uint64_t kLastFaultStep = kSteps * 8 / 10;
constexpr double kLeaseSeconds = 3;

std::string RunsFolder(const std::string& folder) { return folder + "/runs"; }

// The same for all jobs of one mode, so that all sync jobs end with the same bits.
nlohmann::json JobConfig() {
  nlohmann::json config = nlohmann::json::parse(R"({
    "name": "chaos",
    "model": {"layers": [
      {"type": "flatten"},
      {"type": "dense", "units": 24},
      {"type": "tanh"},
      {"type": "dropout", "rate": 0.2},
      {"type": "dense", "units": 10}
    ]},
    "data": {"format": "digits"},
    "train": {"clip_norm": 0.9},
    "optimizer": {"type": "adam", "learning_rate": 0.003},
    "cluster": {"start_seconds": 120, "wait_seconds": 120},
    "server": {"min_shard_kib": 0}
  })");
  config["data"]["batch_size"] = kBatch;
  config["train"]["examples"] = kSteps * kParts * kBatch;
  config["consistency"] = {{"mode", "sync"}, {"parts", kParts}};
  return config;
}

nlohmann::json JobConfig(const ChaosPlan& plan, const std::string& folder) {
  nlohmann::json config = JobConfig();
  config["cluster"]["workers"] = plan.workers;
  config["cluster"]["lease_seconds"] = kLeaseSeconds;
  config["cluster"]["grace_seconds"] = 0.2;
  config["cluster"]["server_wait_seconds"] = kServerWaitSeconds;
  config["checkpoint"] = {{"directory", RunsFolder(folder)}, {"every_steps", 7}, {"keep", 2}};
  config["wire"]["transport"] = plan.transport;
  config["server"]["apply"] = plan.apply;
  // A step takes some tens of milliseconds, so that faults hit a running job.
  double delay = 0.015;
  if (plan.mode != "sync") {
    config["consistency"] = {{"mode", plan.mode}};
    if (plan.mode == "bounded") config["consistency"]["staleness"] = plan.staleness;
    // A step has as many batches as there are workers.
    config["train"]["examples"] = kSteps * plan.workers * kBatch;
    delay = 0.06;
    if (plan.log) config["server"]["durability"] = "log";
  }
  config["debug"]["worker_delay"] = delay;
  return config;
}

HistoryRules Rules(const ChaosPlan& plan) {
  HistoryRules rules;
  rules.mode = plan.mode == "sync"      ? HistoryRules::Mode::kSync
               : plan.mode == "bounded" ? HistoryRules::Mode::kBounded
                                        : HistoryRules::Mode::kAsync;
  rules.staleness = plan.staleness;
  rules.parts = kParts;
  rules.membership_changes = true;
  rules.server_restarts = true;
  return rules;
}

// One job, its faults and its result.
class Run {
 public:
  Run(const ChaosPlan& plan, ChaosJob* job, std::string runs_folder, ChaosResult* result)
      : plan_(plan),
        job_(*job),
        runs_folder_(std::move(runs_folder)),
        random_(RandomKey(plan.seed, "faults"), 0),
        result_(*result) {}

  // Injects faults until the job is nearly done.
  absl::Status Break() {
    WEIR_RETURN_IF_ERROR(job_.StartAll());
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const uint64_t step, AwaitProgress(4 + random_.NextBelow(8)));
      if (step >= kLastFaultStep) return absl::OkStatus();
      WEIR_RETURN_IF_ERROR(Inject());
    }
  }

  // All tasks must end by themselves, with 0.
  absl::Status AwaitEnd() {
    const auto deadline = Clock::now() + kHangLimit;
    for (const std::string& task : job_.tasks()) {
      const auto exit = job_.WaitForExit(task, deadline);
      if (!exit.has_value()) return absl::DeadlineExceededError(absl::StrCat(task, " did not end"));
      if (!exit->ok()) return absl::InternalError(absl::StrCat(task, " ended with ", exit->ToString()));
    }
    return absl::OkStatus();
  }

 private:
  // Waits until the job runs and is this many steps further; returns its step, or that of its end.
  absl::StatusOr<uint64_t> AwaitProgress(uint64_t steps) {
    const auto start = Clock::now();
    std::optional<uint64_t> from;
    std::string last = "ps:0 did not answer";
    while (Clock::now() < start + kHangLimit) {
      const auto status = job_.Status();
      if (status.ok()) {
        last = status->ShortDebugString();
        if (status->state() == v1::DRAINING || status->state() == v1::DONE) return kSteps;
        if (status->state() == v1::FAILED) return absl::InternalError("the job failed: " + status->failure());
        if (status->state() == v1::RUNNING) {
          if (!from.has_value()) from = status->step();
          if (status->step() > *from) NoteStandstill(Clock::now() - start);
          if (status->step() >= *from + steps) return status->step();
          // The job had not noticed the fault before, and then went back.
          from = std::min(*from, status->step());
        }
      }
      for (const std::string& task : job_.tasks()) {
        const auto exit = job_.WaitForExit(task, Clock::now());
        if (!exit.has_value()) continue;
        if (exit->ok()) return kSteps;
        return absl::InternalError(absl::StrCat(task, " ended by itself with ", exit->ToString()));
      }
      std::this_thread::sleep_for(kPoll);
    }
    return absl::DeadlineExceededError(absl::StrCat("no progress within ",
                                                    absl::FormatDuration(absl::FromChrono(kHangLimit)),
                                                    " after '", fault_, "'; status: ", last));
  }

  void NoteStandstill(Clock::duration took) {
    if (noted_) return;
    noted_ = true;
    result_.longest_standstill =
        std::max(result_.longest_standstill, std::chrono::duration<double>(took).count());
  }

  absl::Status Inject() {
    noted_ = false;
    // With proxies, half of the faults are partitions.
    if (plan_.path == Path::kProxies && random_.NextBelow(2) == 0) return Partition();
    const uint32_t draw = random_.NextBelow(100);
    if (draw < 25) return Counted("kill of a worker", KillAndRestart({Worker()}));
    if (draw < 45) return Counted("kill of a server", KillAndRestart({Server()}));
    if (draw < 60) return Counted("kill of ps:0", KillAndRestart({"ps:0"}));
    if (draw < 67) return Counted("kill of all servers", KillAndRestart(Servers()));
    if (draw < 79) return Counted("kill during a recovery", KillTwice());
    if (draw < 87) return Counted("stop of a worker", Stop(Worker()));
    if (draw < 95 || !plan_.small_disk) return Counted("stop of a server", Stop(Server()));
    return Counted("full disk", FillDisk());
  }
  absl::Status Counted(const std::string& fault, absl::Status status) {
    fault_ = fault;
    ++result_.faults[fault];
    return status;
  }

  std::string Worker() { return absl::StrCat("worker:", random_.NextBelow(plan_.workers)); }
  std::string Server() { return absl::StrCat("ps:", random_.NextBelow(plan_.servers)); }
  std::vector<std::string> Servers() const {
    return {job_.tasks().begin(), job_.tasks().begin() + plan_.servers};
  }

  absl::Status KillAndRestart(const std::vector<std::string>& tasks) {
    for (const std::string& task : tasks) {
      job_.Kill(task);
      ++result_.kills;
    }
    for (const std::string& task : tasks) WEIR_RETURN_IF_ERROR(job_.Start(task));
    return absl::OkStatus();
  }

  // The second kill hits during the recovery from the first.
  absl::Status KillTwice() {
    WEIR_RETURN_IF_ERROR(KillAndRestart({Server()}));
    std::this_thread::sleep_for(milliseconds(random_.NextBelow(300)));
    return KillAndRestart({random_.NextBelow(4) == 0 ? Worker() : Server()});
  }

  // Every fourth stop is longer than the lease.
  absl::Status Stop(const std::string& task) {
    const bool long_stop = random_.NextBelow(4) == 0 && MayBeAway(task);
    job_.Signal(task, SIGSTOP);
    std::this_thread::sleep_for(Duration(long_stop));
    job_.Signal(task, SIGCONT);
    return absl::OkStatus();
  }

  // Whether the job waits for this task if it is away for more than a lease. The job may end without a worker
  // that is about to join again.
  bool MayBeAway(const std::string& task) const {
    if (task[0] != 'w') return true;
    const absl::StatusOr<v1::ClusterStatus> status = job_.Status();
    return status.ok() &&
           std::any_of(status->tasks().begin(), status->tasks().end(), [&](const v1::TaskStatus& of) {
             return of.task() == task && of.phase() == v1::TASK_LIVE;
           });
  }

  // Cuts one task off from all its peers, or from one server, in one direction or both; every third time for
  // longer than a lease. Held messages arrive late or never.
  absl::Status Partition() {
    const std::string task = random_.NextBelow(2) == 0 ? Worker() : Server();
    std::string peer;
    if (random_.NextBelow(2) == 0) peer = task[0] == 'w' ? Server() : Worker();
    const uint32_t way = random_.NextBelow(3);
    const bool long_one = random_.NextBelow(3) == 0 && MayBeAway(task);
    const bool drop = random_.NextBelow(2) == 0;
    const std::vector<BreakingProxy*> proxies = job_.Proxies(task, peer);
    for (BreakingProxy* proxy : proxies) proxy->Hold(way != 1, way != 0);
    std::this_thread::sleep_for(Duration(long_one));
    for (BreakingProxy* proxy : proxies) proxy->Heal(drop);
    return Counted(
        absl::StrCat("partition, ", way == 2 ? "both ways" : "one way", long_one ? ", beyond a lease" : ""),
        absl::OkStatus());
  }

  // Shorter or longer than a lease.
  milliseconds Duration(bool beyond) {
    return milliseconds(beyond ? static_cast<int>(1000 * kLeaseSeconds) + 700 : 20 + random_.NextBelow(700));
  }

  // Waits until some checkpoints have failed.
  absl::Status FillDisk() {
    WEIR_RETURN_IF_ERROR(SmallDisk::Fill(runs_folder_));
    const auto progress = AwaitProgress(15);
    SmallDisk::Free(runs_folder_);
    return progress.status();
  }

  const ChaosPlan& plan_;
  ChaosJob& job_;
  const std::string runs_folder_;
  RandomStream random_;
  ChaosResult& result_;
  std::string fault_ = "the start";
  bool noted_ = true;
};

// A repeated push has the answer of the first one. Pushes whose answers a killed worker never got are not
// judged.
void CheckRepeats(const ChaosJob& job, const std::vector<HistoryEvent>& events, ChaosResult* result) {
  // Shard, its incarnation, worker, its incarnation, clock, part.
  using Key = std::tuple<uint32_t, uint64_t, uint32_t, uint64_t, uint64_t, uint32_t>;
  std::map<Key, const HistoryEvent*> first;
  for (const HistoryEvent& event : events) {
    if (!event.is_push || event.outcome != "OK") continue;
    first[{event.shard, event.incarnation, event.worker, event.worker_incarnation, event.clock, event.part}] =
        &event;
  }
  const std::vector<std::vector<RepeatedPush>> shards = job.RepeatedPushes();
  for (uint32_t shard = 0; shard < shards.size(); ++shard) {
    for (const RepeatedPush& push : shards[shard]) {
      const auto found =
          first.find({shard, push.incarnation, push.worker, push.worker_incarnation, push.clock, push.part});
      if (found == first.end()) continue;
      ++result->operations;
      if (found->second->version == push.version) continue;
      result->violations.push_back(absl::StrCat(found->second->where, ": this push made version ",
                                                found->second->version, " of shard ", shard,
                                                "; sent twice, it made version ", push.version, " too"));
    }
  }
}

// With the log nothing is lost: over all incarnations of a shard, one push made each version, and each batch
// was applied once.
void CheckNothingLost(const nlohmann::json& summary, uint64_t batches,
                      const std::vector<HistoryEvent>& events, ChaosResult* result) {
  const uint64_t pushes = summary.value("pushes", uint64_t{0});
  const uint64_t lost = summary.value("lost_pushes", uint64_t{0});
  if (pushes != batches || lost != 0) {
    result->violations.push_back(absl::StrCat("shard 0 has applied ", pushes, " pushes, and ", lost,
                                              " were lost; the job has ", batches, " batches, and a log"));
  }
  std::map<std::tuple<uint32_t, bool, uint64_t>, const HistoryEvent*> made;
  for (const HistoryEvent& event : events) {
    if (!event.is_push || event.outcome != "OK") continue;
    for (const bool batch : {false, true}) {
      const uint64_t number = batch ? event.batch : event.version;
      const auto [other, added] = made.emplace(std::tuple(event.shard, batch, number), &event);
      if (added) continue;
      result->violations.push_back(absl::StrCat(event.where, ": ", batch ? "batch " : "version ", number,
                                                " of shard ", event.shard, " is acknowledged here and at ",
                                                other->second->where));
    }
  }
}

// The hashes in a job's summary; "none": no worker evaluated the weights, the job has no tables.
ChaosBits BitsOf(const nlohmann::json& summary) {
  const auto hash = [&](const char* field) {
    const auto found = summary.find(field);
    return found != summary.end() && found->is_string() ? found->get<std::string>() : "none";
  };
  return {hash("weights_sha256"), hash("tables_sha256")};
}

RowsOfJob RowsOf(const ChaosPlan& plan) {
  return plan.mode == "sync" ? RowsOfJob::kComeAndGo : RowsOfJob::kCount;
}

void CheckEnd(const ChaosPlan& plan, const ChaosJob& job, const std::string& runs_folder,
              const ChaosBits& sync_bits, ChaosResult* result) {
  const auto violation = [result](const std::string& what) { result->violations.push_back(what); };
  const auto summary = job.Summary();
  if (!summary.ok()) return violation(std::string(summary.status().message()));
  const uint64_t batches = kSteps * (plan.mode == "sync" ? kParts : plan.workers);
  if (summary->value("examples", uint64_t{0}) != batches * kBatch) {
    violation(absl::StrCat("the job ended with ", summary->value("examples", uint64_t{0}), " of ",
                           batches * kBatch, " examples"));
  }
  const ChaosBits bits = BitsOf(*summary);
  const auto compare = [&](const char* field, const std::string& got, const std::string& expected,
                           const std::string& where) {
    if (got != expected) violation(absl::StrCat(field, " is ", got, ", ", where, " ", expected));
  };
  if (plan.mode == "sync") {
    compare("weights_sha256", bits.weights_sha256, sync_bits.weights_sha256, "without faults");
    compare("tables_sha256", bits.tables_sha256, sync_bits.tables_sha256, "without faults");
  }
  if (plan.tables) {
    for (const std::string& wrong : CheckRows(*summary, RowsOf(plan))) violation(wrong);
  }
  const auto events = job.Histories();
  if (!events.ok()) return violation(std::string(events.status().message()));
  const HistoryReport report = CheckHistory(*events, Rules(plan));
  result->operations += report.pulls + report.pushes;
  if (report.total() > 0) violation(report.ToString());
  CheckRepeats(job, *events, result);
  if (!plan.log) return;
  CheckNothingLost(*summary, batches, *events, result);
  const auto replayed = ReplayJob(FileSystem::Posix(), runs_folder, [](const std::string&) {});
  if (!replayed.ok()) return violation(std::string(replayed.status().message()));
  const std::string from = absl::StrCat("replayed from ", replayed->start);
  compare("weights_sha256", bits.weights_sha256, replayed->weights_sha256, from);
  if (plan.tables) compare("tables_sha256", bits.tables_sha256, replayed->tables_sha256, from);
}

absl::StatusOr<std::unique_ptr<ChaosJob>> MakeJob(const ChaosPlan& plan, const ChaosPrograms& programs,
                                                  const std::string& folder, nlohmann::json config) {
  if (plan.tables) WEIR_RETURN_IF_ERROR(AddTables(folder, RowsOf(plan), &config));
  ChaosJob::Options options;
  options.programs = programs;
  options.folder = folder;
  options.config = config.dump(2);
  options.servers = plan.servers;
  options.workers = plan.workers;
  options.path = plan.path;
  options.breaks = plan.breaks;
  options.path_seed = plan.seed;
  return ChaosJob::Create(std::move(options));
}

}  // namespace

std::string ChaosPlan::ToString() const {
  return absl::StrCat(
      mode, mode == "bounded" ? absl::StrCat("(", staleness, ")") : "", ", ", servers, " servers, ", workers,
      " workers, ", transport, ", ", apply, log ? ", log" : "", path == Path::kProxies ? ", partitions" : "",
      path == Path::kRepeaters ? ", requests come twice and late" : "", breaks ? ", connections break" : "",
      small_disk ? ", small disk" : "", tables ? ", tables" : "");
}

ChaosPlan MakeChaosPlan(uint64_t seed, const std::string& mode, uint32_t workers, bool disk) {
  RandomStream random(RandomKey(seed, "plan"), 0);
  ChaosPlan plan;
  plan.seed = seed;
  plan.mode = std::vector<std::string>{"sync", "bounded", "async"}[random.NextBelow(3)];
  if (!mode.empty()) plan.mode = mode;
  plan.servers = 1 + random.NextBelow(3);
  plan.workers = kFewestWorkers + random.NextBelow(workers - kFewestWorkers + 1);
  plan.staleness = random.NextBelow(4);
  plan.transport = std::vector<std::string>{"auto", "unix", "tcp"}[random.NextBelow(3)];
  plan.apply = random.NextBelow(2) == 0 ? "streamed" : "staged";
  plan.path = std::array{Path::kDirect, Path::kProxies, Path::kRepeaters}[random.NextBelow(3)];
  plan.breaks = random.NextBelow(2) == 0 && plan.path == Path::kProxies;
  // Proxies and repeaters speak TCP.
  if (plan.path != Path::kDirect) plan.transport = "tcp";
  plan.log = random.NextBelow(2) == 0 && plan.mode != "sync";
  if (plan.log) plan.apply = "staged";
  // A log that cannot be written ends the job.
  plan.small_disk = random.NextBelow(2) == 0 && disk && !plan.log;
  // Of a stream of chance of its own, so that the plans of seeds stay the same otherwise.
  plan.tables = RandomStream(RandomKey(seed, "plan: tables"), 0).NextBelow(2) == 0;
  return plan;
}

absl::StatusOr<ChaosBits> FaultFreeBits(const ChaosPrograms& programs, const std::string& folder,
                                        bool tables) {
  ChaosPlan plan;
  plan.tables = tables;
  ChaosResult ignored;
  WEIR_ASSIGN_OR_RETURN(const auto job, MakeJob(plan, programs, folder, JobConfig()));
  WEIR_RETURN_IF_ERROR(job->StartAll());
  WEIR_RETURN_IF_ERROR(Run(plan, job.get(), "", &ignored).AwaitEnd());
  WEIR_ASSIGN_OR_RETURN(const nlohmann::json summary, job->Summary());
  return BitsOf(summary);
}

ChaosResult RunChaosJob(const ChaosPlan& plan, const ChaosPrograms& programs, const std::string& folder,
                        const ChaosBits& bits) {
  const auto start = Clock::now();
  ChaosResult result;
  std::error_code ignored;
  const std::string runs_folder = RunsFolder(folder);
  std::filesystem::create_directories(runs_folder, ignored);
  absl::Status status = plan.small_disk ? SmallDisk::Mount(runs_folder) : absl::OkStatus();
  if (status.ok()) {
    const auto job = MakeJob(plan, programs, folder, JobConfig(plan, folder));
    status = job.status();
    if (status.ok()) {
      Run run(plan, job->get(), runs_folder, &result);
      status = run.Break();
      if (status.ok()) status = run.AwaitEnd();
      if (status.ok()) CheckEnd(plan, **job, runs_folder, bits, &result);
      for (const auto& [fault, count] : (*job)->PathFaults()) {
        if (count > 0) result.faults[fault] += count;
      }
    }
  }
  if (plan.small_disk) SmallDisk::Unmount(runs_folder);
  if (!status.ok()) result.violations.emplace_back(status.message());
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace weir
