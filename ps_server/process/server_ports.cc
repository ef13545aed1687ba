#include "ps_server/process/server_ports.h"

#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/system/clock.h"
#include "common/telemetry/http_server.h"
#include "common/telemetry/logging.h"
#include "ps_server/grpc/client_limits.h"
#include "ps_server/grpc/grpc_listeners.h"
#include "ps_server/grpc/health_service.h"
#include "ps_server/process/server_metrics.h"

namespace weir {
namespace {

// Half of them may be of one host.
constexpr size_t kHealthConnections = 64;

constexpr char kTokenHint[] =
    "this page needs the token of --http_token_file: as \"Authorization: Bearer TOKEN\", or as a password";
constexpr char kProofHint[] =
    "this page needs https with a certificate of the job, or the token of --http_token_file: as "
    "\"Authorization: Bearer TOKEN\", or as a password";

// A gRPC server of grpc.health.v1, on connections that others have accepted.
class GrpcHealth {
 public:
  static absl::StatusOr<std::unique_ptr<GrpcHealth>> Start(std::set<std::string> services,
                                                           LimitCounters* counters) {
    std::unique_ptr<GrpcHealth> made(new GrpcHealth(std::move(services), counters));
    WEIR_RETURN_IF_ERROR(made->loop_->Start());
    made->health_->Start();
    return made;
  }
  ~GrpcHealth() {
    health_->End();
    server_->Shutdown(std::chrono::system_clock::now());
    loop_->Stop();
  }

  void Take(UniqueFd connection) {
    if (!connections_.Admit(connection.get())) return;
    grpc::AddInsecureChannelFromFd(server_.get(), connection.Release());
  }
  void End() { health_->End(); }

 private:
  GrpcHealth(std::set<std::string> services, LimitCounters* counters)
      : connections_({kHealthConnections, kHealthConnections / 2, "of --health_port", "of --health_port"},
                     &Clock::Awake(), counters) {
    grpc::ServerBuilder builder;
    SetHealthOptions(&builder);
    loop_ = std::make_unique<GrpcEventLoop>(builder.AddCompletionQueue(), std::chrono::microseconds(0));
    health_ = std::make_unique<HealthService>(loop_.get(), std::move(services));
    health_->Register(&builder);
    server_ = builder.BuildAndStart();
  }

  ConnectionLimits connections_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<GrpcEventLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServer::Options& options) {
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(options);
  if (!server.ok()) return absl::FailedPreconditionError(server.status().message());
  return server;
}

}  // namespace

// Members that are used by the threads of those below come first.
struct ServerPorts::State {
  std::unique_ptr<JobMetrics> job_metrics;
  std::unique_ptr<GrpcHealth> grpc_health;
  std::unique_ptr<HttpServer> pages, health;
};

ServerPorts::ServerPorts(std::unique_ptr<State> state) : state_(std::move(state)) {}
ServerPorts::~ServerPorts() = default;

absl::StatusOr<std::unique_ptr<ServerPorts>> ServerPorts::Start(Options options) {
  auto state = std::make_unique<State>();
  HttpServer::Options common;
  common.host = options.host;
  common.health = options.health;
  common.ready = options.ready;
  if (options.health_port >= 0) {
    WEIR_ASSIGN_OR_RETURN(state->grpc_health, GrpcHealth::Start(std::move(options.services), options.limits));
    HttpServer::Options health = common;
    health.port = options.health_port;
    health.on_http2 = [grpc = state->grpc_health.get()](UniqueFd connection) {
      grpc->Take(std::move(connection));
    };
    WEIR_ASSIGN_OR_RETURN(state->health, Listen(health));
    LogInfo("health at http://", state->health->address(), "/healthz, and over gRPC");
  }
  if (options.http_port < 0) return std::unique_ptr<ServerPorts>(new ServerPorts(std::move(state)));

  HttpServer::Options pages = common;
  pages.port = options.http_port;
  if (options.closed) {
    pages.authorize = [token = options.token](absl::string_view authorization, bool proven) {
      return proven || token.AuthorizesHttp(authorization);
    };
    pages.authorize_hint = options.tls == nullptr ? kTokenHint : kProofHint;
  }
  if (options.tls != nullptr) {
    pages.accept_tls = [tls = options.tls](int socket) { return AcceptHttps(socket, *tls); };
  }
  pages.metrics = options.metrics;
  if (options.coordinator != nullptr) {
    state->job_metrics = std::make_unique<JobMetrics>(options.coordinator, options.metrics);
    pages.refresh_metrics = [metrics = state->job_metrics.get()] { metrics->Refresh(); };
  }
  WEIR_ASSIGN_OR_RETURN(state->pages, Listen(pages));
  // In the clear, a browser or a Prometheus without a certificate comes with the token, or needs no proof.
  const bool only_tls = options.closed && options.token.empty();
  const std::string address = absl::StrCat(only_tls ? "https://" : "http://", state->pages->address());
  if (options.coordinator == nullptr) {
    LogInfo("metrics at ", address, "/metrics");
  } else {
    state->pages->Handle("/status", "application/json",
                         [coordinator = options.coordinator] { return StatusJson(*coordinator); });
    state->pages->Handle("/", "text/html; charset=utf-8", [] { return std::string(DashboardPage()); });
    LogInfo("dashboard at ", address, "/, metrics at ", address, "/metrics");
  }
  return std::unique_ptr<ServerPorts>(new ServerPorts(std::move(state)));
}

int ServerPorts::http_port() const { return state_->pages == nullptr ? -1 : state_->pages->port(); }
int ServerPorts::health_port() const { return state_->health == nullptr ? -1 : state_->health->port(); }

void ServerPorts::EndServing() {
  if (state_->grpc_health != nullptr) state_->grpc_health->End();
}

}  // namespace weir
