#include "tests/simulation/sim_server.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "tests/simulation/watched_policy.h"

namespace weir {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(25);
constexpr int kLoops = 2;
// Calls that are being answered when the job ends get this long.
constexpr absl::Duration kLinger = absl::Milliseconds(100);
// The pin of the observer.
constexpr uint64_t kObserversPin = ~uint64_t{0};
// Of one announcement, as in grpc_announcer.cc.
constexpr absl::Duration kAnnounceLimit = absl::Seconds(5);

// Logs the checkpoints that the coordinator considers complete.
class WatchedStore final : public JobStore {
 public:
  // `server`: the owner of the store.
  WatchedStore(Site* site, std::unique_ptr<JobStore> inner, const SimServer* server)
      : site_(site), inner_(std::move(inner)), server_(server) {}
  const Opened& opened() const override { return inner_->opened(); }
  void Reserve(const Numbers& up_to, Done done) override { inner_->Reserve(up_to, std::move(done)); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    CheckpointSaved line;
    line.step = manifest.step();
    line.coordinator = opened().coordinator_incarnation;
    for (const v1::CheckpointFile& file : manifest.files()) line.versions.push_back(file.version());
    if (manifest.job().done() && !server_->replaced()) site_->saw_end = true;
    inner_->Commit(std::move(manifest), [this, begun = site_->world.elapsed(), line = std::move(line),
                                         done = std::move(done)](absl::Status status) mutable {
      if (status.ok()) {
        line.at = site_->world.elapsed();
        for (const BitFlipped& flip : site_->log.flips)
          line.damaged |= flip.step == line.step && flip.at >= begun;
        site_->world.Trace("saved", {line.step});
        site_->log.saved.push_back(std::move(line));
      }
      done(std::move(status));
    });
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override {
    inner_->PassOver(step, why, std::move(done));
  }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 private:
  Site* const site_;
  const std::unique_ptr<JobStore> inner_;
  const SimServer* const server_;
};

}  // namespace

Site::Site(const Plan& p, bool verbose)
    : plan(p), world(p.seed, verbose), network(&world, p.network, &faults), ledger(p.ledger), disk(p.seed) {}
Site::~Site() = default;

std::optional<SharedMemory::Place> MappedMemory::Find(const void* data) const {
  const float* const at = static_cast<const float*>(data);
  const auto after = numbers_.upper_bound(at);
  if (after == numbers_.begin()) return std::nullopt;
  const auto& [begin, number] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(at - begin) * sizeof(float);
  if (offset >= segments_[number].bytes) return std::nullopt;
  return SharedMemory::Place{number, offset};
}

// The coordinator's link to the shard of its own process, as in server.cc.
class SimServer::LocalLink final : public ShardLink {
 public:
  LocalLink(SimServer* server, ShardLinkEvents events) : server_(server), ended_(std::move(events.ended)) {
    server_->SetSink([server, report = std::move(events.report)](v1::ShardReport line) {
      // In an event of its own, as if the coordinator's turn came on another thread: so the shard is not
      // within a turn when it is inspected.
      server->site_->world.After(server->node_, absl::ZeroDuration(), [report, line] { report(line); });
    });
    events.connected();
  }
  void Send(const v1::ControlMessage& message) override {
    server_->OnControl(message);
    if (message.has_shutdown()) ended_(absl::OkStatus());
  }

 private:
  SimServer* const server_;
  const std::function<void(absl::Status)> ended_;
};

// The stream to another server. Retries until the server is there.
class SimServer::RemoteLink final : public ShardLink {
 public:
  RemoteLink(Site* site, World::Node from, uint32_t shard, std::string address, ShardLinkEvents events)
      : state_(std::make_shared<State>()) {
    state_->site = site;
    state_->from = from;
    state_->shard = shard;
    state_->address = std::move(address);
    state_->events = std::move(events);
    Try(state_);
  }
  ~RemoteLink() override {
    state_->closed = true;
    if (state_->connection != nullptr) state_->connection->Close(Connection::kOpener);
  }
  void Send(const v1::ControlMessage& message) override {
    if (state_->connection == nullptr) return;
    state_->connection->Send(Connection::kOpener, [server = Server(*state_), state = state_, message] {
      if (state->accepted != nullptr) server->OnStreamMessage(state->accepted, message);
    });
  }

 private:
  struct State {
    Site* site = nullptr;
    World::Node from = 0;
    uint32_t shard = 0;
    std::string address;
    ShardLinkEvents events;
    std::shared_ptr<Connection> connection;
    // The other end.
    std::shared_ptr<ControlStream> accepted;
    bool closed = false;
  };
  static SimServer* Server(const State& state) { return state.site->servers[state.shard].get(); }

  static void Try(const std::shared_ptr<State>& state) {
    if (state->closed) return;
    SimServer* const server = Server(*state);
    World& world = state->site->world;
    const bool spared = !state->site->plan.recoverable();
    auto connection = server->address_ == state->address
                          ? state->site->network.Connect(state->from, server->node_, spared)
                          : nullptr;
    if (connection == nullptr) {
      world.After(state->from, world.Between(absl::Milliseconds(50), absl::Milliseconds(200)),
                  [state] { Try(state); });
      return;
    }
    state->connection = connection;
    connection->OnEnd(Connection::kOpener, [state](const absl::Status& why) {
      if (!state->closed) state->events.ended(why);
    });
    connection->Send(Connection::kOpener, [server, connection, weak = std::weak_ptr<State>(state)] {
      const auto state = weak.lock();
      if (state == nullptr) return;
      state->accepted = server->Attach(connection, [connection, weak](v1::ShardReport report) {
        connection->Send(Connection::kAcceptor, [weak, report = std::move(report)] {
          const auto state = weak.lock();
          if (state != nullptr && !state->closed) state->events.report(report);
        });
      });
      if (state->accepted == nullptr) return;
      connection->Send(Connection::kAcceptor, [weak] {
        const auto state = weak.lock();
        if (state != nullptr && !state->closed) state->events.connected();
      });
    });
  }

  const std::shared_ptr<State> state_;
};

SimServer::SimServer(Site* site, uint32_t index)
    : site_(site),
      index_(index),
      node_(site->world.AddNode(absl::StrCat("ps:", index))),
      address_(Site::AddressOf(index)) {}

SimServer::~SimServer() {
  if (running()) Kill();
}

void SimServer::Start() {
  // Two crashes, one during the absence after the other, start the server once; a later start would wake a
  // ps:0 that was replaced meanwhile.
  if (running() || replaced_) return;
  World& world = site_->world;
  if (index_ != 0 && instance_ != 0 && site_->plan.moves > 0 && world.Chance(site_->plan.moves)) {
    ++site_->faults["server moved"];
    address_ = absl::StrCat("ps", index_, ":", 1 + world.Below(3));
  }
  world.Start(node_);
  instance_ = uint64_t{node_} << 32 | world.pid(node_);
  announce_ = 0;
  announcements_.emplace(site_->plan.config);
  over_ = installed_ = just_installed_ = dying_ = false;
  disk_operations_left_ = 0;
  disk_hang_.reset();
  store_works_ = false;
  store_work_.clear();
  control_ = nullptr;
  coordinator_incarnation_ = 0;
  last_heard_.reset();
  last_ping_ = false;
  watch_.emplace(Watch());
  model_hash_ = site_->ledger.model().Hash();
  Shard::Options options;
  options.config = site_->plan.config;
  options.index = index_;
  if (site_->seams.config) site_->seams.config(index_, &options.config);
  options.new_incarnation = [this] { return site_->next_incarnation++; };
  options.background = [this, &world](std::function<void()> work) {
    const absl::Duration wait = world.Between(absl::Milliseconds(1), absl::Milliseconds(80));
    world.After(node_, std::max(wait, disk_hangs_until_ - world.elapsed()),
                [this, work = std::move(work)] { Work(/*of_store=*/false, work, nullptr); });
  };
  options.files = site_->files;
  options.clock = &world;
  options.threads = &site_->threads;
  options.kernels = site_->seams.kernels;
  options.chunk_unit = static_cast<uint64_t>(site_->ledger.chunk_unit());
  options.own_thread = false;
  options.reader_limits = site_->seams.reader_limits;
  options.nudge = [this, &world](absl::Duration in) { world.After(node_, in, [this] { shard_->Tick(); }); };
  options.on_revoke = [this, &world] { world.After(node_, absl::ZeroDuration(), [this] { DropRevoked(); }); };
  if (site_->seams.make_policy) options.make_policy = site_->seams.make_policy;
  if (site_->plan.early_rows()) {
    options.make_policy = [this, inner = options.make_policy](const v1::JobConfig& config,
                                                              const v1::Install& install) {
      return std::make_unique<WatchedPolicy>(
          inner(config, install), [this](EarlyRowsEvent::Kind kind, const PushKey& push) {
            EarlyRowsEvent& event = NewEarlyRowsEvent(kind);
            event.batch = BatchOf(push.clock, push.part, site_->plan.ledger.parts);
          });
    };
  }
  if (site_->plan.staleness_limit().has_value()) {
    options.make_policy = [this, inner = options.make_policy](const v1::JobConfig& config,
                                                              const v1::Install& install) {
      return std::make_unique<WatchedPolicy>(inner(config, install),
                                             [this](EarlyRowsEvent::Kind kind, const PushKey& push) {
                                               if (kind == EarlyRowsEvent::Kind::kPart) Completed(push);
                                             });
    };
  }
  options.weights_source = [site = site_, source = site_->seams.weights_source
                                                       ? site_->seams.weights_source(index_)
                                                       : SlabSource(AllocateSlab)](size_t elements) {
    std::shared_ptr<float> memory = source(elements);
    float* const begin = memory.get();
    site->mapped.Add(std::move(memory), elements);
    return std::shared_ptr<float>(begin, [](float*) {});
  };
  shard_ = std::make_unique<Shard>(std::move(options));
  loops_.clear();
  for (int i = 0; i < kLoops; ++i) loops_.emplace_back(&world, node_);
  shared_memory_ = std::make_unique<SimSharedMemory>(site_);
  SetSink([](const v1::ShardReport&) {});
  world.After(node_, kTick, [this] { Tick(); });
  if (index_ != 0 || StartCoordinator()) return;
  // The coordinator cannot read or write its store, reports it and exits; the supervisor retries.
  ++site_->faults["coordinator could not open its store"];
  world.After(node_, absl::Milliseconds(1), [this] {
    StartAfter(absl::Milliseconds(300));
    Kill(/*orderly=*/true);
  });
}

void SimServer::StartAfter(absl::Duration away) {
  ++coming_;
  site_->world.After(away, [this] {
    --coming_;
    Start();
  });
}

v1::JobIdentity SimServer::NewJob() const {
  v1::JobIdentity job;
  job.set_id(instance_ | 1);
  job.set_name(site_->plan.config.name());
  return job;
}

bool SimServer::StartCoordinator() {
  World& world = site_->world;
  std::unique_ptr<JobStore> store;
  if (site_->plan.recoverable()) {
    JobStoreOnDisk::Options options;
    options.file_system = site_->files;
    options.directory = site_->plan.config.checkpoint().directory();
    options.job = NewJob();
    options.keep = static_cast<int>(site_->plan.config.checkpoint().keep());
    // The same in every run of the seed.
    options.holder = v1::FolderHolder();
    options.holder.set_host(world.name(node_));
    options.holder.set_pid(world.pid(node_));
    options.holder.set_nonce(uint64_t{node_} << 32 | world.pid(node_));
    options.certainly_runs = [](const v1::FolderHolder&) { return false; };
    // One task after another, in order.
    auto free_at = std::make_shared<absl::Duration>();
    options.run = [this, &world, free_at](std::function<void()> work) {
      *free_at = std::max({*free_at, world.elapsed(), disk_hangs_until_}) +
                 world.Between(absl::Milliseconds(1), absl::Milliseconds(20));
      world.After(node_, *free_at - world.elapsed(), [this, work = std::move(work)] { StoreWork(work); });
    };
    site_->disk_user = this;
    auto opened = JobStoreOnDisk::Open(std::move(options));
    site_->disk_user = nullptr;
    if (!opened.ok()) {
      if (absl::IsDataLoss(opened.status())) site_->log.damage.push_back(opened.status().ToString());
      return false;
    }
    store = *std::move(opened);
    StoreTaken line{world.elapsed(), store->opened().coordinator_incarnation, std::nullopt};
    if (const auto& newest = store->opened().newest; newest.has_value()) line.step = newest->step();
    site_->log.taken.push_back(line);
    if (site_->seams.store) store = site_->seams.store(std::move(store));
    store = std::make_unique<WatchedStore>(site_, std::move(store), this);
  }
  Coordinator::Options options;
  options.config = site_->plan.config;
  options.job = NewJob();
  options.workers = static_cast<uint32_t>(site_->plan.workers.size());
  for (uint32_t shard = 0; shard < site_->plan.servers(); ++shard) {
    options.shard_addresses.push_back(Site::AddressOf(shard));
  }
  options.clock = &world;
  options.open_link = [this](uint32_t shard, const std::string& address,
                             ShardLinkEvents events) -> std::unique_ptr<ShardLink> {
    if (shard == 0) return std::make_unique<LocalLink>(this, std::move(events));
    return std::make_unique<RemoteLink>(site_, node_, shard, address, std::move(events));
  };
  site_->saw_end = false;
  options.on_end = [this](const v1::ClusterStatus& status, const absl::Status& failure) {
    if (!running() || dying_) return;
    // This failure is not the end of the job.
    if (replaced_ || KindOf(failure) == v1::FAILURE_FENCED) return End(failure);
    if (site_->saw_end) site_->log.lost_in_summary = status.lost_pushes();
    site_->log.ended = true;
    site_->log.failure = std::string(failure.message());
    site_->network.EndFaults();
    End(failure);
  };
  coordinator_ = std::make_unique<Coordinator>(std::move(options), std::move(store));
  return true;
}

void SimServer::Kill(bool orderly) {
  if (!running()) return;
  Observe();
  CutWorkShort();
  site_->network.OnKill(node_, orderly);
  for (auto& [id, stream] : std::exchange(streams_, {})) stream->Die();
  for (SimLoop& loop : loops_) loop.Stop();
  shared_memory_ = nullptr;
  site_->world.Kill(node_);
  coordinator_ = nullptr;
  shard_ = nullptr;
  control_ = nullptr;
  installed_ = just_installed_ = false;
}

void SimServer::Tick() {
  site_->world.After(node_, kTick, [this] { Tick(); });
  shared_memory_->DropClosed();
  shard_->Tick();
  if (installed_ && !replaced_) {
    for (const Table::Stats& stats : shard_->table_stats()) {
      site_->log.tables.push_back({site_->world.elapsed(), index_, incarnation_, shard_->counters().version,
                                   stats.rows, stats.counters});
      if (!site_->plan.early_rows()) continue;
      EarlyRowsEvent& event = NewEarlyRowsEvent(EarlyRowsEvent::Kind::kCounted);
      event.rows = stats.rows;
      event.counters = stats.counters;
    }
  }
  if (over_) return;
  if (coordinator_ != nullptr) {
    // In an event of its own: its messages to the shard come after what the shard has just done.
    site_->world.After(node_, absl::ZeroDuration(), [this] {
      if (!over_) coordinator_->Tick();
    });
  } else if (index_ != 0) {
    TickControl();
  }
}

void SimServer::TickControl() {
  Announce(site_->world.Now());
  watch_->Tick();
}

CoordinatorWatch::Options SimServer::Watch() {
  CoordinatorWatch::Options watch;
  watch.config = site_->plan.config;
  watch.clock = &site_->world;
  watch.presence = [this] {
    return CoordinatorWatch::Presence{last_heard_, control_ != nullptr, "ps:0 (coordinator)"};
  };
  watch.background = [](const std::function<void()>& work) { work(); };
  watch.is_done = [this] {
    Weights saved = SavedWeights();
    if (saved == nullptr) return false;
    site_->log.final_weights.resize(site_->plan.servers());
    site_->log.final_weights[index_] = std::move(saved);
    return true;
  };
  watch.drop_silent = [this](absl::Duration) {
    control_->ended = true;
    control_->connection->Close(Connection::kAcceptor);
    AwaitNext();
  };
  watch.end = [this](const absl::Status& failure) { End(failure); };
  watch.complain = [](const std::string&) {};
  return watch;
}

void SimServer::Announce(absl::Time now) {
  if (!announcements_->Due(now, /*attached=*/control_ != nullptr)) return;
  announcements_->OnBegin(now);
  v1::AnnounceRequest request;
  request.set_shard(index_);
  request.set_address(address_);
  request.set_instance(instance_);
  *request.mutable_protocol() = OwnProtocol();
  const uint64_t number = announce_ = site_->next_session++;
  const auto done = [this, number](const absl::StatusOr<v1::AnnounceReply>& reply) {
    if (announce_ != number || over_) return;
    announce_ = 0;
    if (reply.ok()) {
      announcements_->OnTaken();
    } else if (absl::IsUnavailable(reply.status()) || absl::IsDeadlineExceeded(reply.status())) {
      announcements_->OnNoAnswer();
    } else {
      // There is never another process that is this shard.
      site_->log.complaints.push_back(
          absl::StrCat("ps:0 refuses ps:", index_, " at ", address_, ": ", reply.status().ToString()));
      End(reply.status());
    }
  };
  SimServer* const first = site_->servers[0].get();
  site_->network.Call<v1::AnnounceReply>(
      node_, first->node_,
      [first, request](std::function<void(absl::StatusOr<v1::AnnounceReply>)> reply) {
        if (first->coordinator() == nullptr) return reply(absl::UnavailableError("there is no coordinator"));
        first->coordinator()->Announce(request, std::move(reply));
      },
      nullptr, done);
  site_->world.After(node_, kAnnounceLimit, [done] { done(absl::DeadlineExceededError("no answer")); });
}

void SimServer::End(const absl::Status& failure) {
  if (std::exchange(over_, true)) return;
  World& world = site_->world;
  world.Trace("server ends", {index_, failure.ok() ? 0u : 1u});
  v1::ControlMessage shutdown;
  SetFailure(failure, shutdown.mutable_shutdown());
  shard_->Control(shutdown);
  for (const auto& [id, stream] : streams_) stream->EndJob(failure);
  world.After(node_, kLinger, [this, failure] { ExitWhenIdle(failure); });
}

void SimServer::ExitWhenIdle(const absl::Status& failure) {
  if (!hanging_.empty()) {
    // A process whose thread hangs does not exit.
    return site_->world.After(node_, kTick, [this, failure] { ExitWhenIdle(failure); });
  }
  const int code = failure.ok() ? 0 : KindOf(failure) == v1::FAILURE_FENCED ? 78 : 138;
  if (replaced_) {
    ++site_->faults[absl::StrCat("replaced coordinator ended with ", code)];
    site_->log.replaced.push_back(
        {site_->world.elapsed(), code, std::string(failure.message()), site_->log.ended});
  } else if (site_->log.ended || code != 138) {
    site_->log.exits[absl::StrCat("ps:", index_)] = code;
  } else {
    // The supervisor restarts the process if it has failed while the job goes on.
    StartAfter(absl::Milliseconds(200));
  }
  Kill(/*orderly=*/true);
}

void SimServer::BeReplaced() {
  replaced_ = true;
  site_->world.Trace("replaced", {index_, node_});
  site_->network.CutOff(node_);
}

// ---- control

void SimServer::SetSink(std::function<void(v1::ShardReport)> sink) {
  shard_->SetReporter([this, sink = std::move(sink)](v1::ShardReport report) {
    if (report.pinned().pin() == kObserversPin) return;
    if (report.has_attached() && index_ != 0) report.mutable_attached()->set_instance(instance_);
    OnReport(report);
    if (site_->seams.report) site_->seams.report(index_, &report);
    sink(std::move(report));
  });
}

bool SimServer::CoordinatorMayReturn() const { return site_->plan.recoverable() || last_ping_; }

bool SimServer::RefuseAnother(Connection& connection) const {
  if (CoordinatorMayReturn() || control_ == nullptr) return false;
  connection.Close(Connection::kAcceptor,
                   absl::FailedPreconditionError("another coordinator has this shard"));
  return true;
}

std::shared_ptr<SimServer::ControlStream> SimServer::Attach(const std::shared_ptr<Connection>& connection,
                                                            std::function<void(v1::ShardReport)> sink) {
  if (over_) {
    connection->Close(Connection::kAcceptor);
    return nullptr;
  }
  if (RefuseAnother(*connection)) return nullptr;
  last_heard_ = site_->world.Now();
  auto stream = std::make_shared<ControlStream>();
  stream->connection = connection;
  stream->sink = std::move(sink);
  connection->OnEnd(Connection::kAcceptor, [this, stream](const absl::Status&) { OnStreamLost(stream); });
  return stream;
}

void SimServer::OnStreamMessage(const std::shared_ptr<ControlStream>& stream,
                                const v1::ControlMessage& message) {
  if (!running() || stream->ended) return;
  if (!stream->adopted) {
    if (message.hello().coordinator_incarnation() < coordinator_incarnation_) {
      stream->ended = true;
      return stream->connection->Close(Connection::kAcceptor,
                                       absl::FailedPreconditionError("a later coordinator has this shard"));
    }
    if (RefuseAnother(*stream->connection)) {
      stream->ended = true;
      return;
    }
    stream->adopted = true;
    coordinator_incarnation_ = message.hello().coordinator_incarnation();
    if (control_ != nullptr) {
      control_->ended = true;
      control_->connection->Close(Connection::kAcceptor);
    }
    control_ = stream;
    SetSink(stream->sink);
  }
  if (message.has_ping()) last_ping_ = message.ping().last();
  OnControl(message);
  if (!message.has_shutdown()) return;
  stream->ended = true;
  stream->connection->Close(Connection::kAcceptor, absl::OkStatus());
  End(FailureIn(message.shutdown()));
}

void SimServer::OnStreamLost(const std::shared_ptr<ControlStream>& stream) {
  if (std::exchange(stream->ended, true) || over_) return;
  if (stream->adopted && !CoordinatorMayReturn())
    return End(LostPeer("ps:0 (coordinator) was lost: its stream ended"));
  if (control_ == stream) AwaitNext();
}

void SimServer::AwaitNext() {
  control_ = nullptr;
  site_->world.Trace("coordinator awaited", {index_});
}

void SimServer::OnControl(const v1::ControlMessage& message) {
  if (!running()) return;
  last_heard_ = site_->world.Now();
  if (!message.has_ping())
    site_->world.Trace("control", {index_, static_cast<uint64_t>(message.message_case())});
  if (message.has_shutdown() && message.shutdown().failure().empty() && !replaced_) {
    site_->log.final_weights.resize(site_->plan.servers());
    Weights& final_weights = site_->log.final_weights[index_];
    if (installed_) {
      Observe();
      final_weights = Snapshot();
    }
    // The server came back to a job that was done, or cannot be inspected just now: the result is in the last
    // checkpoint.
    if (final_weights == nullptr) final_weights = SavedWeights();
  }
  if (message.has_membership()) membership_ = message.membership().membership();
  if (!site_->seams.control) {
    Control(message);
  } else {
    for (const v1::ControlMessage& each : site_->seams.control(index_, message)) Control(each);
  }
}

void SimServer::Control(const v1::ControlMessage& message) {
  if (message.has_install()) installed_ = just_installed_ = false;
  if (message.has_membership()) memberships_[message.membership().membership().epoch()] = membership_;
  shard_->Control(message);
}

void SimServer::OnReport(const v1::ShardReport& report) {
  if (!report.has_stats())
    site_->world.Trace("report", {index_, static_cast<uint64_t>(report.report_case())});
  if (report.has_installed() && report.installed().error().empty()) {
    incarnation_ = report.installed().incarnation();
    just_installed_ = true;
  }
  if (report.has_attached()) {
    site_->log.told_batches.emplace_back().shard = index_;
    site_->log.told_batches.back().batches.Insert(report.attached().batches());
  }
  if (report.has_membership()) OnMembershipInstalled(report.membership());
  if (site_->seams.reported) {
    // Comes after the current turn of the shard.
    for (const v1::ControlMessage& each : site_->seams.reported(index_, report)) Control(each);
  }
}

void SimServer::OnMembershipInstalled(const v1::MembershipInstalled& report) {
  if (replaced_) return;
  Installed line;
  line.at = site_->world.elapsed();
  line.shard = index_;
  line.incarnation = incarnation_;
  line.version = shard_->counters().version;
  // The coordinator's membership, under the epoch that the shard confirms.
  line.membership = memberships_[report.epoch()];
  line.membership.set_epoch(report.epoch());
  site_->log.installed.push_back(std::move(line));
}

// ---- the data plane

std::shared_ptr<SimStream> SimServer::Accept(const std::shared_ptr<Connection>& connection,
                                             std::function<void(std::string)> receive) {
  World& world = site_->world;
  ExchangeSession::Options options;
  options.shard = shard_.get();
  options.id = site_->next_session++;
  options.executor = &loops_[options.id % loops_.size()];
  const int64_t unit = site_->ledger.chunk_unit(), units = site_->ledger.elements() / unit;
  options.chunk_elements = static_cast<uint64_t>(unit * std::max<int64_t>(1, units / (1 + world.Below(3))));
  options.chunks_in_flight = 1 + world.Below(4);
  options.shared_memory = shared_memory_.get();
  options.admit = [](const v1::Caller&, bool) { return absl::OkStatus(); };
  auto stream = std::make_shared<SimStream>(site_, node_, options, connection, std::move(receive),
                                            [this](const v1::Caller& caller) {
                                              if (coordinator() != nullptr)
                                                coordinator()->OnDisconnect(caller);
                                            });
  streams_[options.id] = stream;
  connection->OnEnd(Connection::kAcceptor, [this, id = options.id](const absl::Status&) {
    const auto it = streams_.find(id);
    if (it == streams_.end()) return;
    const std::shared_ptr<SimStream> stream = it->second;
    streams_.erase(it);
    stream->OnBroken();
  });
  return stream;
}

void SimServer::DropRevoked() {
  for (auto it = streams_.begin(); it != streams_.end();) {
    const std::shared_ptr<SimStream> stream = it->second;
    it = stream->DropRevoked() ? streams_.erase(it) : std::next(it);
  }
}

// ---- from above

void SimServer::Observe() {
  if (shard_ == nullptr) return;
  if (!replaced_ && just_installed_) {
    Weights weights = Snapshot();
    if (weights == nullptr && site_->plan.ledger.uploaded) return;  // its initial values are yet to come
    just_installed_ = false;
    installed_ = true;
    version_ = shard_->counters().version;
    site_->world.Trace("installed", {index_, incarnation_, version_});
    SawEarlyRows(weights);
    site_->log.restored.push_back(
        {site_->world.elapsed(), index_, incarnation_, version_, std::move(weights)});
  }
  if (!installed_) return;
  if (!replaced_) {
    site_->log.lost[index_] = shard_->counters().pushes_lost;
    site_->log.dropped[index_] = shard_->counters().pushes_dropped;
  }
  if (shard_->counters().version == version_) return;
  Published line;
  line.at = site_->world.elapsed();
  line.shard = index_;
  line.incarnation = incarnation_;
  line.from = version_;
  line.to = shard_->counters().version;
  line.weights = Snapshot();
  // With the log an inspection waits for records on their way to the disk, as a change of the membership
  // does.
  if (line.weights == nullptr && site_->plan.logs()) return;
  version_ = line.to;
  site_->world.Trace("published", {index_, line.to});
  SawEarlyRows(line.weights);
  (replaced_ ? site_->log.published_when_replaced : site_->log.published).push_back(std::move(line));
}

void SimServer::Completed(const PushKey& push) {
  if (replaced_) return;
  RunLog& log = site_->log;
  const auto add_if_sent = [&](uint64_t incarnation) {
    const bool sent = std::any_of(log.sent.begin(), log.sent.end(), [&](const PushSent& one) {
      return one.incarnation == incarnation && one.clock == push.clock;
    });
    if (sent) log.completed.push_back({site_->world.elapsed(), incarnation, index_, push.clock});
    return sent;
  };
  for (const v1::Member& member : membership_.members()) {
    if (member.worker() == push.worker && add_if_sent(member.incarnation())) return;
  }
  // A decision that was on its way to the log's disk when its worker was taken out, or one that a restore
  // replays: it may be that of any incarnation of the worker.
  for (const Joined& joined : log.joins) {
    if (!joined.reader && joined.worker == push.worker) add_if_sent(joined.incarnation);
  }
}

EarlyRowsEvent& SimServer::NewEarlyRowsEvent(EarlyRowsEvent::Kind kind) {
  EarlyRowsEvent& event = site_->log.early_rows.emplace_back();
  event.kind = kind;
  event.process = instance_;
  event.shard = index_;
  return event;
}

void SimServer::SawEarlyRows(const Weights& weights) {
  if (!site_->plan.early_rows()) return;
  EarlyRowsEvent& event = NewEarlyRowsEvent(EarlyRowsEvent::Kind::kSeen);
  event.version = version_;
  event.weights = weights;
}

Weights SimServer::Snapshot() {
  v1::ControlMessage message;
  message.mutable_pin()->set_pin(kObserversPin);
  message.mutable_pin()->set_lease_seconds(600);
  shard_->Control(message);
  v1::PullRequest request;
  request.mutable_caller()->set_model_hash(model_hash_);
  request.set_pin(kObserversPin);
  RowKeys keys;
  const std::vector<uint64_t> of_shard = site_->ledger.KeysOf(index_);
  if (!of_shard.empty()) {
    request.add_rows()->set_keys(of_shard.size());
    TableKeys& table = keys.emplace_back();
    table.count = of_shard.size();
    table.keys = std::make_unique<uint64_t[]>(table.count);
    std::copy(of_shard.begin(), of_shard.end(), table.keys.get());
  }
  Weights weights;
  const auto take = [&](absl::StatusOr<PullAnswer> answer) {
    if (!answer.ok() || answer->version == nullptr) return;
    const float* const values = answer->version->weights.get();
    std::vector<float> all(values, values + shard_->elements());
    if (answer->rows != nullptr) {
      const float* const rows = answer->rows->values.get();
      all.insert(all.end(), rows, rows + of_shard.size() * Ledger::kDim);
    }
    weights = std::make_shared<const std::vector<float>>(std::move(all));
  };
  shard_->Pull(0, request, take, std::move(keys));
  message.mutable_unpin()->set_pin(kObserversPin);
  shard_->Control(message);
  return weights;
}

}  // namespace weir
