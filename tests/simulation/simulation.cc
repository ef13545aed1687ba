#include "tests/simulation/simulation.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/program/exit_codes.h"
#include "tests/simulation/sim_program.h"
#include "tests/simulation/sim_server.h"

namespace weir {
namespace {

// A worker's or reader's process, and the supervisor that starts it again when it dies.
class SimProcess {
 public:
  // `index`: a worker's rank.
  SimProcess(Site* site, v1::Role role, uint32_t index)
      : site_(site),
        role_(role),
        index_(index),
        task_(absl::StrCat(role == v1::WORKER ? "worker:" : "evaluator:", index)),
        node_(site->world.AddNode(task_)) {}
  World::Node node() const { return node_; }
  bool running() const { return site_->world.running(node_); }
  bool live() const { return running() && program_ != nullptr && program_->live(); }
  // The process has no more to do, or is not to come back.
  bool over() const { return over_; }
  // SIGSTOP, until the job has ended.
  void Hang() {
    hangs_ = true;
    site_->world.Pause(node_);
  }
  void WakeIfHung() {
    if (std::exchange(hangs_, false) && running()) site_->world.Resume(node_);
  }
  std::string Waiting() const {
    return program_ == nullptr ? absl::StrCat(task_, " is not started") : program_->Waiting();
  }

  void Start() {
    if (running() || over_) return;
    site_->world.Start(node_);
    const auto on_end = [this](const absl::Status& status) { OnEnd(status); };
    const auto make = role_ == v1::READER                    ? MakeSimReader
                      : site_->plan.workers[index_].in_place ? MakeSimInPlaceWorker
                                                             : MakeSimTrainer;
    program_ = make(site_, node_, index_, on_end);
    program_->Start();
  }
  // SIGKILL.
  void Kill() {
    if (!running()) return;
    site_->network.OnKill(node_);
    site_->world.Kill(node_);
    program_ = nullptr;
    hangs_ = false;
  }
  // Ends a process that waits for servers that are gone because the job has ended. It would wait as long as a
  // job may take to start.
  void EndIfLate() {
    if (running() && !over_ && !live() && !site_->servers[0]->running() && !site_->servers[0]->coming()) {
      OnEnd(absl::UnavailableError("the job has ended"));
    }
  }
  void GoneForGood() {
    Kill();
    over_ = true;
  }

 private:
  void OnEnd(const absl::Status& status) {
    World& world = site_->world;
    const int code = ExitCodeOf(status);
    // A supervisor restarts a task that ends with 138, while the job goes on.
    const bool again = code == kExitPeerLost && !site_->log.ended;
    if (!again) {
      over_ = true;
      // The end of a job may come before its last answers.
      const bool outrun = code == kExitPeerLost && site_->log.failure.empty();
      site_->log.exits[task_] = outrun ? 0 : code;
    }
    // What is cancelled is cancelled by the program itself, which has lost no peer then.
    if ((code != kExitOk && code != kExitPeerLost) || absl::IsCancelled(status)) {
      site_->log.complaints.push_back(absl::StrCat(task_, " ended with ", status.ToString()));
    }
    world.After(node_, absl::ZeroDuration(), [this] { Kill(); });
    if (again)
      world.After(world.Between(absl::Milliseconds(100), absl::Milliseconds(600)), [this] { Start(); });
  }

  Site* const site_;
  const v1::Role role_;
  const uint32_t index_;
  const std::string task_;
  const World::Node node_;
  std::unique_ptr<SimProgram> program_;
  bool over_ = false, hangs_ = false;
};

class Simulation {
 public:
  Simulation(const Plan& plan, bool verbose) : plan_(plan), site_(plan, verbose) {
    for (uint32_t shard = 0; shard < plan.servers(); ++shard) {
      site_.servers.push_back(std::make_unique<SimServer>(&site_, shard));
    }
    for (uint32_t rank = 0; rank < plan.workers.size(); ++rank) {
      processes_.push_back(std::make_unique<SimProcess>(&site_, v1::WORKER, rank));
    }
    for (uint32_t reader = 0; reader < plan.readers.size(); ++reader) {
      processes_.push_back(std::make_unique<SimProcess>(&site_, v1::READER, reader));
    }
  }

  Site* site() { return &site_; }

  SimulationResult Run() {
    World& world = site_.world;
    for (const auto& server : site_.servers) {
      world.After(world.Between(absl::ZeroDuration(), absl::Milliseconds(100)),
                  [&server] { server->Start(); });
    }
    for (size_t i = 0; i < processes_.size(); ++i) {
      const absl::Duration at = i < plan_.workers.size() ? plan_.workers[i].start : absl::Milliseconds(50);
      world.After(at, [process = processes_[i].get()] { process->Start(); });
    }
    for (const FaultPlan& fault : plan_.faults) {
      world.After(fault.at, [this, &fault] { Strike(fault); });
    }
    world.After(plan_.heal, [this] { site_.network.EndFaults(); });
    site_.disk.SetFault(
        [this](const FaultyFileSystem::Operation& operation) { return DiskFault(operation.kind); });
    site_.disk.SetPause([this](FaultyFileSystem::Moment) {
      if (SimServer* const user = DiskUser(); user != nullptr) user->OnDiskStep();
    });

    const auto run = [&](absl::Duration until) {
      world.Run(
          until, [this] { return Over(); }, [this] { Observe(); });
    };
    run(plan_.heal + plan_.patience);
    // A process that was away until the job had ended looks for its servers this long.
    const auto& cluster = plan_.config.cluster();
    if (site_.log.ended) run(world.elapsed() + absl::Seconds(2 * cluster.server_wait_seconds()));
    Finish();

    SimulationResult result;
    result.trace_hash = world.trace_hash();
    result.events = world.events();
    result.messages = site_.network.messages();
    result.elapsed = world.elapsed();
    result.failed = !site_.log.failure.empty();
    result.faults = site_.faults;
    result.violations = CheckInvariants(plan_, site_.ledger, site_.log, &result.operations);
    return result;
  }

 private:
  bool Over() const {
    if (!site_.log.ended) return false;
    for (const auto* servers : {&site_.servers, &site_.replaced}) {
      for (const auto& server : *servers) {
        if (server->running() || server->coming()) return false;
      }
    }
    for (const auto& process : processes_) {
      if (process->running()) return false;
    }
    return true;
  }

  void Observe() {
    if (site_.log.ended) {
      for (const auto& process : processes_) process->WakeIfHung();
      for (const auto& process : processes_) process->EndIfLate();
    }
    for (const auto& server : site_.servers) {
      server->Observe();
      if (server->running() && server->dying())
        CrashServer(server.get(), site_.world.Between(absl::Milliseconds(10), absl::Seconds(1)));
    }
    for (const auto& server : site_.replaced) {
      server->Observe();
      if (server->dying()) server->Kill();
    }
  }

  void CrashServer(SimServer* server, absl::Duration away) {
    server->Kill();
    server->StartAfter(away);
  }

  // Another process takes the place of ps:0, as with an orchestrator that takes ps:0 for dead.
  void Replace(const SimServer* replaced, uint64_t pid) {
    std::unique_ptr<SimServer>& server = site_.servers[0];
    if (server.get() != replaced || site_.world.pid(server->node()) != pid || !server->running() ||
        site_.log.ended) {
      return;
    }
    ++site_.faults["coordinator replaced"];
    server->BeReplaced();
    site_.replaced.push_back(std::exchange(server, std::make_unique<SimServer>(&site_, 0)));
    server->Start();
  }

  // nullptr: none of the job's servers.
  SimServer* DiskUser() const {
    if (site_.disk_user != nullptr) return site_.disk_user;
    for (const auto* servers : {&site_.servers, &site_.replaced}) {
      for (const auto& server : *servers) {
        if (server->node() == site_.world.current()) return server.get();
      }
    }
    return nullptr;
  }

  absl::Status DiskFault(FaultyFileSystem::Kind kind) {
    using Kind = FaultyFileSystem::Kind;
    const bool reads = kind == Kind::kOpen || kind == Kind::kRead || kind == Kind::kList;
    SimServer* const user = DiskUser();
    if (user != nullptr && (user->dying() || (!site_.log.ended && user->DiesHere())))
      return absl::CancelledError("the process is dying");
    if (!reads && site_.world.elapsed() < disk_errors_until_ && site_.world.Chance(0.25)) {
      ++site_.faults["disk operation failed"];
      return absl::UnavailableError("input/output error");
    }
    return absl::OkStatus();
  }

  void Finish() {
    for (const auto& server : site_.servers) {
      if (server->running())
        site_.log.hanging.push_back(absl::StrCat(site_.world.name(server->node()), " still runs"));
    }
    for (const auto& server : site_.replaced) {
      if (server->running()) site_.log.hanging.push_back("a ps:0 that was replaced still runs");
    }
    for (const auto& process : processes_) {
      if (process->running()) site_.log.hanging.push_back(process->Waiting());
    }
  }

  void Strike(const FaultPlan& fault);
  // The job goes on if the worker of this fault stays away.
  bool CanDoWithout(const FaultPlan& fault) const;
  void FlipBit(const FaultPlan& fault);
  void Partition(World::Node from, World::Node to, bool both, absl::Duration duration);

  const Plan& plan_;
  SimThreads threads_;
  Site site_;
  // Workers by rank, then readers.
  std::vector<std::unique_ptr<SimProcess>> processes_;
  absl::Duration disk_errors_until_;
};

void Simulation::Partition(World::Node from, World::Node to, bool both, absl::Duration duration) {
  const auto block = [this, from, to, both](bool blocked) {
    site_.network.Block(from, to, blocked);
    if (both) site_.network.Block(to, from, blocked);
  };
  block(true);
  site_.world.After(duration, [block] { block(false); });
}

void Simulation::FlipBit(const FaultPlan& fault) {
  if (site_.log.ended) return;
  World& world = site_.world;
  const std::string& dir = plan_.config.checkpoint().directory();
  const auto newest = LatestComplete(site_.disk, dir);
  if (newest.ok() && newest->manifest.job().done()) return;
  if (!newest.ok() || !ReadWhole(site_.disk, newest->folder).ok() ||
      !FindWholeBefore(site_.disk, dir, newest->manifest.step()).ok()) {
    return world.After(absl::Milliseconds(50), [this, fault] { FlipBit(fault); });
  }
  const uint64_t step = newest->manifest.step();
  const std::string path =
      JoinPath(newest->folder, newest->manifest.files(static_cast<int>(fault.first)).name());
  std::string bytes = site_.disk.Contents(path);
  bytes[world.Below(static_cast<uint32_t>(bytes.size()))] ^= static_cast<char>(1 << world.Below(8));
  site_.disk.SetContents(path, bytes);
  ++site_.faults["a bit of the newest checkpoint flipped"];
  world.Trace("bit flips", {step});
  site_.log.flips.push_back({world.elapsed(), step});
  for (CheckpointSaved& saved : site_.log.saved) saved.damaged |= saved.step == step;
  CrashServer(site_.servers[fault.first].get(), fault.duration);
}

bool Simulation::CanDoWithout(const FaultPlan& fault) const {
  using Kind = FaultPlan::Kind;
  // A job that begins anew, since nothing was saved yet, needs all workers.
  if (plan_.recoverable() && site_.log.saved.empty()) return false;
  if (!processes_[fault.first]->live()) return false;
  size_t others = 0;
  for (uint32_t rank = 0; rank < plan_.workers.size(); ++rank)
    others += rank != fault.first && processes_[rank]->live();
  // The other workers must be there to stay.
  for (const FaultPlan& other : plan_.faults) {
    const bool leaves = other.kind == Kind::kWorkerGone || other.kind == Kind::kWorkerHangs;
    others -= leaves && &other != &fault && others > 0;
  }
  return others > 0;
}

void Simulation::Strike(const FaultPlan& fault) {
  using Kind = FaultPlan::Kind;
  World& world = site_.world;
  if (site_.log.ended) return;
  const bool on_server = fault.kind >= Kind::kServerPause;
  SimProcess* const process = on_server ? nullptr : processes_[fault.first].get();
  const World::Node server = site_.servers[on_server ? fault.first : fault.second]->node();
  const World::Node victim = on_server ? server : process->node();
  if (!world.running(victim) || !world.running(server)) return;
  ++site_.faults[Name(fault.kind)];
  world.Trace(Name(fault.kind), {fault.first, fault.second});
  switch (fault.kind) {
    case Kind::kWorkerPause:
    case Kind::kServerPause:
      if (world.paused(victim)) return;
      world.Pause(victim);
      world.After(fault.duration, [&world, victim, pid = world.pid(victim)] {
        if (world.pid(victim) == pid) world.Resume(victim);
      });
      return;
    case Kind::kWorkerHangs:
      if (world.paused(victim)) return;
      if (CanDoWithout(fault)) return process->Hang();
      world.Pause(victim);
      // Longer than its lease.
      world.After(2 * absl::Seconds(plan_.config.cluster().lease_seconds()),
                  [&world, victim, pid = world.pid(victim)] {
                    if (world.pid(victim) == pid) world.Resume(victim);
                  });
      return;
    case Kind::kWorkerGone:
      if (CanDoWithout(fault)) return process->GoneForGood();
      [[fallthrough]];
    case Kind::kWorkerCrash:
      process->Kill();
      world.After(fault.duration, [process] { process->Start(); });
      return;
    case Kind::kPartition:
      return Partition(victim, server, /*both=*/true, fault.duration);
    case Kind::kOneWay:
      return fault.back ? Partition(server, victim, /*both=*/false, fault.duration)
                        : Partition(victim, server, /*both=*/false, fault.duration);
    case Kind::kSlowLink: {
      const auto slow = [this, victim, server](absl::Duration by) {
        site_.network.Slow(victim, server, by);
        site_.network.Slow(server, victim, by);
      };
      slow(absl::Milliseconds(100));
      world.After(fault.duration, [slow] { slow(absl::ZeroDuration()); });
      return;
    }
    case Kind::kStreamsBreak:
      return site_.network.BreakStreams(victim, server);
    case Kind::kControlBreaks:
      return site_.network.BreakStreams(site_.servers[0]->node(), server);
    case Kind::kServerCrash:
      return CrashServer(site_.servers[fault.first].get(), fault.duration);
    case Kind::kCrashAtDisk:
      return site_.servers[fault.first]->DieAtDisk(fault.second);
    case Kind::kPowerLoss:
      for (const auto& each : site_.servers) {
        if (each->running())
          CrashServer(each.get(),
                      world.Between(absl::Milliseconds(10), absl::Milliseconds(10) + fault.duration));
      }
      for (const auto& each : site_.replaced) each->Kill();
      return site_.disk.Crash();
    case Kind::kDiskFull:
      site_.disk.SetCapacity(site_.disk.bytes_used());
      world.After(fault.duration, [this] { site_.disk.SetCapacity(UINT64_MAX); });
      return;
    case Kind::kDiskErrors:
      disk_errors_until_ = world.elapsed() + fault.duration;
      return;
    case Kind::kDiskHangs:
      return site_.servers[fault.first]->HangDisk(world.elapsed() + fault.duration);
    case Kind::kDiskHangsWithin:
      return site_.servers[fault.first]->HangWithinDisk(
          {fault.second, fault.duration, /*of_store=*/false, nullptr});
    case Kind::kReplaced: {
      const SimServer* const old = site_.servers[0].get();
      return site_.servers[0]->HangWithinDisk(
          {fault.second, fault.duration, /*of_store=*/!fault.back, [this, &world, &fault, old, server] {
             world.After(world.Between(absl::ZeroDuration(), fault.duration),
                         [this, old, pid = world.pid(server)] { Replace(old, pid); });
           }});
    }
    case Kind::kBitFlips:
      return FlipBit(fault);
    case Kind::kServerPartition:
      return Partition(site_.servers[0]->node(), server, /*both=*/true, fault.duration);
  }
}

}  // namespace

SimulationResult RunSimulation(const Plan& plan, const std::function<void(Site*)>& plant, bool verbose) {
  Simulation simulation(plan, verbose);
  if (plant) plant(simulation.site());
  return simulation.Run();
}

}  // namespace weir
