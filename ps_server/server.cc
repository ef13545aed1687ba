#include "ps_server/server.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/address.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/telemetry/http_server.h"
#include "common/telemetry/logging.h"
#include "common/telemetry/metrics.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/coordinator_service.h"
#include "ps_server/dashboard.h"
#include "ps_server/grpc_shard_link.h"
#include "ps_server/optimizer/kernels.h"
#include "ps_server/parameter_server_service.h"
#include "ps_server/shard_control_service.h"
#include "ps_server/summary.h"

namespace weir {
namespace {

constexpr std::chrono::milliseconds kTick{25};
// After the end of the job, calls that are still being answered get this long.
constexpr std::chrono::seconds kLinger{2};
// Chunks hold at most 1 MiB and a model's description must fit too; nothing that a job needs is larger.
constexpr int kMaxMessageBytes = 4 << 20;

uint64_t RandomIncarnation() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

// The coordinator's link to the shard of its own process.
class LocalShardLink final : public ShardLink {
 public:
  LocalShardLink(Shard* shard, ShardLinkEvents events) : shard_(shard) {
    shard_->SetReporter(std::move(events.report));
    events.connected();
  }
  void Send(const v1::ControlMessage& message) override { shard_->Control(message); }

 private:
  Shard* const shard_;
};

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(Options options) : options_(std::move(options)) {}
  ~ServerImpl() override;

  absl::Status Start();
  int port() const override { return port_; }
  std::string address() const override { return address_; }
  int http_port() const override { return http_ == nullptr ? -1 : http_->port(); }
  absl::Status Wait() override;
  void Stop(const std::string& reason) override;

 private:
  void End(const std::string& failure);
  void Tick();
  absl::Status StartHttp();
  void AddMetrics();

  const Options options_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Coordinator> coordinator_;  // on ps:0
  std::unique_ptr<ParameterServerService> parameter_server_;
  std::unique_ptr<CoordinatorService> coordinator_service_;
  std::unique_ptr<ShardControlService> control_;  // on the others
  std::unique_ptr<grpc::Server> grpc_;
  MetricRegistry metrics_;
  std::unique_ptr<HttpServer> http_;
  int port_ = 0;
  std::string address_;
  absl::Time started_;

  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string failure_ ABSL_GUARDED_BY(mutex_);
  v1::ClusterStatus final_status_ ABSL_GUARDED_BY(mutex_);
  std::thread ticker_;
};

absl::Status ServerImpl::Start() {
  WEIR_ASSIGN_OR_RETURN(const Kernels* kernels, KernelsFromConfig(options_.config.server()));
  WEIR_ASSIGN_OR_RETURN(const Address listen, ParseAddress(options_.listen));
  if (!options_.summary_path.empty()) WEIR_RETURN_IF_ERROR(CheckSummaryPath(options_.summary_path));
  started_ = Clock::Real().Now();
  const uint32_t wanted = options_.config.server().apply_threads();
  threads_ = std::make_unique<ThreadPool>(wanted > 0 ? static_cast<int>(wanted)
                                                     : static_cast<int>(std::thread::hardware_concurrency()));
  Shard::Options shard;
  shard.config = options_.config;
  shard.incarnation = RandomIncarnation();
  shard.threads = threads_.get();
  shard.kernels = kernels;
  shard.make_policy = options_.make_policy;
  shard_ = std::make_unique<Shard>(std::move(shard));
  parameter_server_ = std::make_unique<ParameterServerService>(shard_.get());

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // Otherwise a second server on the same port would take half of the first one's calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Clients ping while a call is parked, to notice a dead server; by default gRPC takes that for abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(parameter_server_.get());
  if (options_.index == 0) {
    Coordinator::Options coordinator;
    coordinator.config = options_.config;
    coordinator.workers = options_.workers;
    coordinator.worker_names = options_.worker_names;
    coordinator.shard_addresses = options_.ps_addresses;
    coordinator.open_link = [shard = shard_.get()](uint32_t index, const std::string& address,
                                                   ShardLinkEvents events) -> std::unique_ptr<ShardLink> {
      if (index == 0) return std::make_unique<LocalShardLink>(shard, std::move(events));
      return OpenGrpcShardLink(address, std::move(events));
    };
    coordinator.on_end = [this](const v1::ClusterStatus& status, const std::string& failure) {
      {
        MutexLock lock(mutex_);
        final_status_ = status;
      }
      End(failure);
    };
    coordinator_ = std::make_unique<Coordinator>(std::move(coordinator));
    coordinator_service_ = std::make_unique<CoordinatorService>(coordinator_.get());
    builder.RegisterService(coordinator_service_.get());
  } else {
    ShardControlService::Options control;
    control.shard = shard_.get();
    control.on_end = [this](const std::string& failure) { End(failure); };
    control_ = std::make_unique<ShardControlService>(std::move(control));
    builder.RegisterService(control_.get());
  }
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || (!listen.is_unix() && port_ == 0)) {
    return absl::FailedPreconditionError(absl::StrCat("ps:", options_.index, " cannot listen on ",
                                                      options_.listen,
                                                      ": the address is taken or not one of this machine"));
  }
  Address bound = listen;
  if (!listen.is_unix()) bound.port = static_cast<uint16_t>(port_);
  address_ = bound.ToString();
  if (options_.http_port >= 0) WEIR_RETURN_IF_ERROR(StartHttp());
  ticker_ = std::thread([this] { Tick(); });
  LogInfo("shard ", options_.index, " listens on ", address_, ", kernels ", kernels->name, ", ",
          threads_->threads(), " apply threads");
  return absl::OkStatus();
}

ServerImpl::~ServerImpl() {
  if (grpc_ != nullptr) Stop("the server stops");
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (ticker_.joinable()) ticker_.join();
  http_.reset();
  if (control_ != nullptr) {
    MutexLock lock(mutex_);
    control_->Detach(failure_);
  }
  // Whatever is parked is answered first, since gRPC waits for its calls; the coordinator's links have told
  // the other shards.
  if (shard_ != nullptr) {
    v1::ControlMessage shutdown;
    {
      MutexLock lock(mutex_);
      shutdown.mutable_shutdown()->set_failure(failure_);
    }
    shard_->Control(shutdown);
  }
  if (grpc_ != nullptr) grpc_->Shutdown(std::chrono::system_clock::now() + kLinger);
  // A thread of gRPC may still be in a turn of the shard, which reports to the coordinator.
  if (shard_ != nullptr) shard_->Quiesce();
  coordinator_.reset();
  shard_.reset();
}

void ServerImpl::Tick() {
  const absl::Duration lease = absl::Seconds(options_.config.cluster().lease_seconds());
  const absl::Duration start_limit = absl::Seconds(options_.config.cluster().start_seconds());
  auto next = std::chrono::steady_clock::now();
  while (true) {
    next += kTick;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
      }
      if (stopping_) return;
    }
    shard_->Tick();
    if (coordinator_ != nullptr) {
      coordinator_->Tick();
      continue;
    }
    const absl::Time now = Clock::Real().Now();
    if (!control_->attached()) {
      if (now - started_ > start_limit) {
        End(absl::StrCat("ps:0 (coordinator) did not attach within ", absl::FormatDuration(start_limit)));
      }
    } else if (now - control_->last_heard() > lease) {
      End(absl::StrCat(control_->CoordinatorName(), " was lost: nothing was heard of it for ",
                       absl::FormatDuration(now - control_->last_heard())));
    }
  }
}

void ServerImpl::End(const std::string& failure) {
  MutexLock lock(mutex_);
  if (over_) return;
  over_ = true;
  failure_ = failure;
  changed_.NotifyAll();
}

void ServerImpl::Stop(const std::string& reason) {
  // On ps:0 the coordinator tells everybody, and then calls End().
  if (coordinator_ != nullptr) {
    coordinator_->Fail(reason);
  } else {
    End(reason);
  }
}

absl::Status ServerImpl::Wait() {
  std::string failure;
  v1::ClusterStatus status;
  {
    MutexLock lock(mutex_);
    while (!over_) changed_.Wait(mutex_);
    failure = failure_;
    status = final_status_;
  }
  if (!options_.summary_path.empty()) WEIR_RETURN_IF_ERROR(WriteSummary(status, options_.summary_path));
  return failure.empty() ? absl::OkStatus() : absl::UnavailableError(failure);
}

absl::Status ServerImpl::StartHttp() {
  AddMetrics();
  HttpServer::Options options;
  options.host = options_.http_host;
  options.port = options_.http_port;
  options.metrics = &metrics_;
  options.health = [this]() -> absl::Status {
    MutexLock lock(mutex_);
    return failure_.empty() ? absl::OkStatus() : absl::UnavailableError(failure_);
  };
  WEIR_ASSIGN_OR_RETURN(http_, HttpServer::Start(options));
  if (coordinator_ != nullptr) {
    http_->Handle("/status", "application/json", [this] {
      std::string json;
      google::protobuf::util::JsonPrintOptions print;
      print.always_print_primitive_fields = true;
      print.preserve_proto_field_names = true;
      // Runs in the coordinator's order; the answer comes within microseconds.
      Mutex mutex;
      CondVar cv;
      bool done = false;
      coordinator_->Status([&](absl::StatusOr<v1::ClusterStatus> status) {
        if (status.ok() && !google::protobuf::util::MessageToJsonString(*status, &json, print).ok())
          json.clear();
        MutexLock lock(mutex);
        done = true;
        cv.NotifyAll();
      });
      MutexLock lock(mutex);
      while (!done) cv.Wait(mutex);
      return json;
    });
    http_->Handle("/", "text/html; charset=utf-8", [] { return std::string(DashboardPage()); });
  }
  LogInfo("metrics at http://", http_->address(), "/metrics");
  return absl::OkStatus();
}

void ServerImpl::AddMetrics() {
  metrics_.AddProcessMetrics();
  const Labels labels = {{"shard", absl::StrCat(options_.index)}};
  const Shard::Counters& counters = shard_->counters();
  const auto counter = [&](const char* name, const char* help, const std::atomic<uint64_t>& value) {
    metrics_.AddCallbackCounter(name, help, labels, [&value] { return static_cast<double>(value.load()); });
  };
  counter("weir_pushes_applied_total", "Pushes that became part of a version.", counters.pushes_applied);
  counter("weir_pushes_refused_total", "Pushes that were completed without an update.",
          counters.pushes_refused);
  counter("weir_pushes_repeated_total", "Repeats of pushes that had been completed.",
          counters.pushes_repeated);
  counter("weir_push_bytes_total", "Gradient bytes that arrived.", counters.bytes_pushed);
  counter("weir_pull_bytes_total", "Weight bytes that were handed out.", counters.bytes_pulled);
  const auto gauge = [&](const char* name, const char* help, const std::atomic<uint64_t>& value) {
    metrics_.AddCallbackGauge(name, help, labels, [&value] { return static_cast<double>(value.load()); });
  };
  gauge("weir_version", "Updates since version 0.", counters.version);
  gauge("weir_parked_pulls", "Pulls that wait for other workers.", counters.parked_pulls);
  metrics_.AddCallbackGauge("weir_shard_bytes", "Weights of this shard.", labels, [shard = shard_.get()] {
    return static_cast<double>(shard->elements()) * sizeof(float);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  auto server = std::make_unique<ServerImpl>(std::move(options));
  WEIR_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace weir
