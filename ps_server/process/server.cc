#include "ps_server/process/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/object_store/object_file_system.h"
#include "common/optimizer/kernels.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/grpc_socket_options.h"
#include "common/system/process.h"
#include "common/telemetry/grpc_process.h"
#include "common/telemetry/logging.h"
#include "common/telemetry/metrics.h"
#include "common/threads/mutex.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc/client_limits.h"
#include "ps_server/grpc/coordinator_service.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/grpc/grpc_listeners.h"
#include "ps_server/grpc/health_service.h"
#include "ps_server/grpc/parameter_server_service.h"
#include "ps_server/process/event_file.h"
#include "ps_server/process/grpc_local_coordinator.h"
#include "ps_server/process/grpc_remote_coordinator.h"
#include "ps_server/process/server_end.h"
#include "ps_server/process/server_metrics.h"
#include "ps_server/process/server_ports.h"
#include "ps_server/process/server_threads.h"
#include "ps_server/process/summary.h"

namespace weir {
namespace {

constexpr std::chrono::milliseconds kTick{25};
// How often TensorBoard gets the job's values.
constexpr std::chrono::seconds kEvents{1};
// After the end of the job, open calls get this long to be answered, so that their callers learn of it. A
// caller that is slow or stopped delays the server no longer.
constexpr std::chrono::seconds kLinger{2};
// How long a server that shall stop waits for ps:0, which may have got the same signal and want a last
// checkpoint from the server.
constexpr absl::Duration kDrainGrace = absl::Seconds(5);
// 1 / this of the memory may be taken by bytes that have come over TCP and are to be read, and as much by
// rows on their way, each way.
constexpr uint64_t kTravelShare = 4;
// How often a server warns of a certificate that ends soon.
constexpr absl::Duration kExpiryLook = absl::Hours(24);

// Not 0.
uint64_t RandomNumber() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

uint32_t IoThreads(const v1::ServerConfig& config) {
  if (config.io_threads() > 0) return config.io_threads();
  return std::clamp(static_cast<uint32_t>(UsableCpus()) / 4, 1u, 8u);
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(Options options)
      : options_(std::move(options)),
        credentials_(std::make_shared<const JobCredentials>(options_.tls)),
        admission_(options_.token, options_.tls == nullptr ? "" : options_.tls->identity().job,
                   options_.config.server().clients().joins_per_second()),
        connections_(ConnectionLimits::Most::Of(options_.config.server().clients(), DescriptorLimit()),
                     &clock_, &admission_.limits()) {}
  ~ServerImpl() override;

  absl::Status Start();
  int port() const override { return listeners_->bound().port; }
  std::string address() const override { return listeners_->bound().ToString(); }
  int http_port() const override {
    MutexLock lock(mutex_);
    return http_ == nullptr ? -1 : http_->http_port();
  }
  int health_port() const override {
    MutexLock lock(mutex_);
    return http_ == nullptr ? -1 : http_->health_port();
  }
  absl::Status Wait() override;
  void Stop(const std::string& reason) override;
  void Drain(const std::string& reason) override;

 private:
  // `memory`, here and below: of this process, bytes.
  void MakeShard(const Kernels& kernels, uint64_t memory);
  // Makes the coordinator, or what this server has of another process's. Returns the service's name.
  std::string MakeCoordinator(uint64_t memory, grpc::ServerBuilder* builder);
  // `services`: known to gRPC's health.
  absl::Status StartHttp(std::set<std::string> services);

  void Tick();
  // OK: the server takes calls, and no restore is under way. Other tasks may be missing.
  absl::Status Ready() const;

  // From now on the server's services do not serve; it finishes what is under way.
  void EndServing();
  std::unique_ptr<ServerPorts> TakeHttp() {
    MutexLock lock(mutex_);
    return std::move(http_);
  }

  // Null on the others than ps:0, and before it is started.
  Coordinator* coordinator() const { return local_ == nullptr ? nullptr : local_->coordinator(); }
  // Whether a server that is lost may come back.
  bool recoverable() const { return options_.config.checkpoint().has_directory(); }
  absl::Duration server_wait() const {
    return absl::Seconds(options_.config.cluster().server_wait_seconds());
  }

  // All gRPC code runs on the event loops, the control plane on the first of them. No code in the process may
  // use gRPC's callback API: its threads poll the same sockets and take events from the loops' threads, which
  // costs a third more CPU.
  GrpcEventLoop* control_loop() { return &loops_.front(); }

  const Options options_;
  // The time for which this process was stopped does not count, so no peer is declared lost for it.
  const Clock& clock_ = Clock::Awake();
  const std::shared_ptr<const JobCredentials> credentials_;
  GrpcAdmission admission_;
  ConnectionLimits connections_;
  ServerEnd end_{[this] { EndServing(); }};
  std::unique_ptr<ThreadPool> threads_;
  // Where checkpoints and logs lie. Other users may be able to write there.
  std::unique_ptr<FileSystem> disk_, files_;
  BackgroundThreads background_;
  std::unique_ptr<GrpcListeners> listeners_;
  Ticker ticker_;  // the shard nudges it
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<ParameterServerService> parameter_server_;
  std::unique_ptr<GrpcLocalCoordinator> local_;    // on ps:0
  std::unique_ptr<GrpcRemoteCoordinator> remote_;  // on the others
  std::unique_ptr<HealthService> health_;
  std::deque<GrpcEventLoop> loops_;
  std::unique_ptr<grpc::Server> grpc_;
  MetricRegistry metrics_;
  // On a thread of its own, for a disk may hang. The thread alone uses the file, until the ticker is stopped.
  std::unique_ptr<EventFile> events_;
  Ticker event_ticker_;
  mutable Mutex mutex_;
  // Null: the server has no such ports, or starts, or has stopped.
  std::unique_ptr<ServerPorts> http_ ABSL_GUARDED_BY(mutex_);
  // Used by the ticker only: when the server next looks at the end of its certificate.
  absl::Time next_expiry_look_ = absl::InfinitePast();
};

// ---- the start

absl::Status ServerImpl::Start() {
  WEIR_ASSIGN_OR_RETURN(const Kernels* kernels, KernelsFromConfig(options_.config.server()));
  WEIR_ASSIGN_OR_RETURN(const Address listen, ParseAddress(options_.listen));
  if (!options_.summary_path.empty()) WEIR_RETURN_IF_ERROR(CheckSummaryPath(options_.summary_path));
  WEIR_RETURN_IF_ERROR(CheckRoomForGrpc());
  WEIR_RETURN_IF_ERROR(background_.Start());
  const uint32_t wanted = options_.config.server().apply_threads();
  threads_ = std::make_unique<ThreadPool>(wanted > 0 ? static_cast<int>(wanted) : UsableCpus());
  disk_ = FileSystem::Beneath(options_.config.checkpoint().directory());
  files_ = WithObjectStorage(*disk_);
  const uint64_t memory = LookAtMemory().most();
  MakeShard(*kernels, memory);

  // gRPC itself reports only that it failed, after log lines of its own.
  const auto cannot_listen = [this](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("ps:", options_.index, " cannot listen on ", options_.listen, ": ", why));
  };
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetServerOptions(options_.config.server().clients(), memory / kTravelShare, &builder);
  GrpcListeners::Options listeners;
  listeners.at = listen;
  listeners.shard = options_.index;
  listeners.config = options_.config;
  listeners.open = options_.token.empty();
  listeners.credentials = credentials_;
  listeners.limits = &connections_;
  auto bound = GrpcListeners::Bind(std::move(listeners), &builder);
  if (!bound.ok()) return cannot_listen(bound.status().message());
  listeners_ = *std::move(bound);
  for (uint32_t i = 0; i < IoThreads(options_.config.server()); ++i) {
    loops_.emplace_back(builder.AddCompletionQueue(),
                        std::chrono::microseconds(options_.config.wire().busy_poll_us()));
  }
  ParameterServerService::Options data_plane;
  data_plane.shard = shard_.get();
  data_plane.loops = &loops_;
  data_plane.admission = &admission_;
  data_plane.wire = options_.config.wire();
  if (memory > 0) data_plane.most_row_bytes = memory / kTravelShare;
  if (options_.index == 0) {
    data_plane.on_broken = [this](const v1::Caller& caller) { coordinator()->OnDisconnect(caller); };
  }
  parameter_server_ = std::make_unique<ParameterServerService>(std::move(data_plane));
  parameter_server_->Register(&builder);
  std::set<std::string> services = {ParameterServerService::kService, MakeCoordinator(memory, &builder)};
  health_ = std::make_unique<HealthService>(control_loop(), services);
  health_->Register(&builder);
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return cannot_listen("the address is taken or not one of this machine");
  admission_.SetPort(listeners_->bound().port);
  WEIR_RETURN_IF_ERROR(listeners_->Open(grpc_.get()));
  for (GrpcEventLoop& loop : loops_) {
    WEIR_RETURN_IF_ERROR(loop.Start(/*adds=*/listeners_->shared_memory() != nullptr));
  }
  WEIR_RETURN_IF_ERROR(listeners_->Accept());
  if (options_.index == 0) {
    WEIR_RETURN_IF_ERROR(local_->Start());
  } else {
    WEIR_RETURN_IF_ERROR(remote_->Start(listeners_->bound().port));
  }
  health_->Start();
  parameter_server_->Start(listeners_->shared_memory());
  WEIR_RETURN_IF_ERROR(StartHttp(std::move(services)));
  if (!options_.tensorboard_dir.empty()) {
    WEIR_ASSIGN_OR_RETURN(events_,
                          EventFile::Create(&FileSystem::Posix(), options_.tensorboard_dir, absl::Now()));
    WEIR_RETURN_IF_ERROR(event_ticker_.Start(
        kEvents,
        [this] {
          if (const auto status = StatusOf(*coordinator())) events_->Add(*status, absl::Now());
        },
        [] {}));
  }
  WEIR_RETURN_IF_ERROR(ticker_.Start(
      kTick, [this] { Tick(); }, [this] { shard_->Tick(); }));
  LogInfo("shard ", options_.index, " listens on ", address(), ", kernels ", kernels->name, ", ",
          loops_.size(), " I/O threads, ", threads_->threads(), " apply threads");
  return absl::OkStatus();
}

void ServerImpl::MakeShard(const Kernels& kernels, uint64_t memory) {
  Shard::Options shard;
  shard.config = options_.config;
  shard.index = options_.index;
  shard.clock = &clock_;
  shard.new_incarnation = RandomNumber;
  shard.background = [this](const std::function<void()>& work) { background_.Run(work); };
  shard.threads = threads_.get();
  shard.files = files_.get();
  shard.kernels = &kernels;
  shard.weights_source = [this](size_t elements) {
    SharedMemoryServer* const shared = listeners_->shared_memory();
    return shared == nullptr ? AllocateSlab(elements) : shared->Allocate(elements);
  };
  shard.nudge = [this](absl::Duration in) {
    if (in > absl::ZeroDuration()) return ticker_.CheckIn(absl::ToChronoNanoseconds(in));
    control_loop()->Post([this] { shard_->Tick(); });
  };
  shard.on_revoke = [this] { parameter_server_->DropRevoked(); };
  shard.on_short = [this] { parameter_server_->WantReleases(); };
  shard.make_policy = options_.make_policy;
  shard.memory_bytes = memory;
  shard_ = std::make_unique<Shard>(std::move(shard));
}

std::string ServerImpl::MakeCoordinator(uint64_t memory, grpc::ServerBuilder* builder) {
  if (options_.index == 0) {
    GrpcLocalCoordinator::Options local;
    local.shard = shard_.get();
    local.loop = control_loop();
    local.admission = &admission_;
    local.clock = &clock_;
    local.files = files_.get();
    local.new_job = RandomNumber();
    local.memory_bytes = memory;
    local.server = &options_;
    local.credentials = credentials_;
    local.on_end = [this](const v1::ClusterStatus& status, const absl::Status& failure) {
      end_.Finish(failure, status);
    };
    local_ = std::make_unique<GrpcLocalCoordinator>(std::move(local));
    local_->Register(builder);
    return CoordinatorService::kService;
  }
  GrpcRemoteCoordinator::Options remote;
  remote.shard = shard_.get();
  remote.loop = control_loop();
  remote.admission = &admission_;
  remote.clock = &clock_;
  remote.background = &background_;
  remote.files = files_.get();
  remote.server = &options_;
  remote.instance = RandomNumber();
  remote.credentials = credentials_;
  remote.end = [this](const absl::Status& failure) { end_.Finish(failure); };
  remote_ = std::make_unique<GrpcRemoteCoordinator>(std::move(remote));
  remote_->Register(builder);
  return v1::ShardControl::service_full_name();
}

absl::Status ServerImpl::StartHttp(std::set<std::string> services) {
  if (options_.http_port < 0 && options_.health_port < 0) return absl::OkStatus();
  metrics_.AddProcessMetrics();
  AddServerMetrics(options_.index, *shard_, *parameter_server_, admission_, &connections_, options_.tls.get(),
                   &metrics_);
  ServerPorts::Options options;
  options.host = options_.http_host;
  options.http_port = options_.http_port;
  options.health_port = options_.health_port;
  options.token = options_.http_token;
  options.closed = options_.http_closed;
  options.tls = options_.tls;
  options.health = [this]() -> absl::Status {
    const absl::Status failure = end_.failure();
    return failure.ok() ? absl::OkStatus() : absl::UnavailableError(failure.message());
  };
  options.ready = [this] { return Ready(); };
  options.services = std::move(services);
  options.limits = &admission_.limits();
  options.metrics = &metrics_;
  options.coordinator = coordinator();
  WEIR_ASSIGN_OR_RETURN(auto http, ServerPorts::Start(std::move(options)));
  {
    MutexLock lock(mutex_);
    http_ = std::move(http);
  }
  if (end_.has_begun()) EndServing();
  return absl::OkStatus();
}

// ---- while it serves

void ServerImpl::Tick() {
  const absl::Time now = clock_.Now();
  shard_->Tick();
  if (coordinator() != nullptr) {
    coordinator()->Tick();
  } else {
    remote_->Tick(now);
  }
  if (std::optional<std::string> late = end_.EndLateDrain(now); late.has_value()) {
    // The shards' coordinator saves them.
    if (coordinator() != nullptr) {
      absl::StrAppend(&*late, "; it could not be saved within ", absl::FormatDuration(server_wait()),
                      ", which are cluster.server_wait_seconds");
    }
    Stop(*late);
  }
  if (options_.tls != nullptr && now >= next_expiry_look_) {
    next_expiry_look_ = now + kExpiryLook;
    WarnIfExpiring(*options_.tls, absl::Now());
  }
}

absl::Status ServerImpl::Ready() const {
  WEIR_RETURN_IF_ERROR(end_.Ready());
  if (shard_->loading()) return absl::UnavailableError("its part of the model is being made or restored");
  return absl::OkStatus();
}

// ---- the end

void ServerImpl::Stop(const std::string& reason) {
  end_.Announce(reason);
  // On ps:0 the coordinator tells all servers, and then calls on_end.
  if (coordinator() != nullptr) {
    coordinator()->Fail(reason);
  } else if (recoverable()) {
    end_.Leave(LostPeer(reason));
  } else {
    end_.Finish(LostPeer(reason));
  }
}

void ServerImpl::Drain(const std::string& reason) {
  end_.Announce(reason);
  if (!recoverable() || (remote_ != nullptr && !remote_->attached())) return Stop(reason);
  const absl::Duration limit =
      coordinator() != nullptr ? server_wait() : std::min(server_wait(), kDrainGrace);
  if (!end_.BeginDrain(clock_.Now() + limit, reason)) return;
  if (coordinator() != nullptr) return coordinator()->Drain(reason);
  LogInfo(reason, "; waits at most ", absl::FormatDuration(limit), " for ps:0 to end the job, and then ends");
}

void ServerImpl::EndServing() {
  health_->End();
  MutexLock lock(mutex_);
  if (http_ != nullptr) http_->EndServing();
}

absl::Status ServerImpl::Wait() {
  const auto [failure, status] = end_.Wait();
  event_ticker_.Stop();
  if (events_ != nullptr) events_->Add(status, absl::Now());
  if (!options_.summary_path.empty()) {
    const absl::Status written = WriteSummary(status, options_.config, options_.summary_path);
    if (!written.ok() && failure.ok()) {
      return StorageFailure(absl::StrCat("the job is done, but ", written.message(),
                                         ". It is: ", SummaryLine(status, options_.config)));
    }
    // The failure that ended the job is reported last.
    if (!written.ok()) LogError(written.message());
  }
  return failure;
}

ServerImpl::~ServerImpl() {
  if (grpc_ != nullptr) Stop("the server stops");
  ticker_.Stop();
  event_ticker_.Stop();
  if (remote_ != nullptr) remote_->StopAnnouncing();
  // Not under the lock, for which its threads may wait.
  TakeHttp().reset();
  if (remote_ != nullptr) remote_->Detach(std::string(end_.failure().message()));
  if (listeners_ != nullptr) listeners_->Close();
  // What a job leaves behind in object storage is cleared away, if that answers; a job that fails has no
  // time.
  if (files_ != nullptr) files_->EndWithin(end_.failure().ok() ? server_wait() : absl::FromChrono(kLinger));
  // Parked calls are answered first, since gRPC waits for its calls. The coordinator's links have told the
  // other shards.
  if (grpc_ != nullptr) {
    // If the job continues without this server, clients get no answer, as if the process had died: they wait
    // for the server to come back, or for ps:0 to say that it did not.
    if (!end_.leaves()) {
      const absl::Status failure = end_.failure();
      v1::ControlMessage message;
      SetFailure(failure, message.mutable_shutdown());
      shard_->Control(message);
      parameter_server_->End(failure);
      // gRPC would wait for connections too, and a client without an open call may take long to notice that
      // it must close its own.
      const auto deadline = std::chrono::steady_clock::now() + kLinger;
      for (GrpcEventLoop& loop : loops_) loop.WaitUntilNoCalls(deadline);
    }
    grpc_->Shutdown(std::chrono::system_clock::now());
  }
  if (local_ != nullptr) local_->CloseLinks();
  // The loops' last tasks may call the shard and the coordinator.
  for (GrpcEventLoop& loop : loops_) loop.Stop();
  // Another thread may still be in a turn of the shard, which reports to the coordinator.
  if (shard_ != nullptr) {
    background_.Finish();
    shard_->Quiesce();
  }
  if (local_ != nullptr) local_->Destroy();
  shard_.reset();
}

}  // namespace

absl::Status Server::CheckHost(const v1::JobConfig& config) {
  WEIR_RETURN_IF_ERROR(KernelsFromConfig(config.server()).status());
  const absl::Status options = OptionsOfAccepted(config.wire().congestion_control()).status();
  return options.ok()
             ? options
             : absl::Status(options.code(), absl::StrCat("wire.congestion_control: ", options.message()));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  auto server = std::make_unique<ServerImpl>(std::move(options));
  WEIR_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace weir
