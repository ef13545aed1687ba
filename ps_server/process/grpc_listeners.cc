#include "ps_server/process/grpc_listeners.h"

#include <errno.h>
#include <sys/stat.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_socket_options.h"
#include "common/telemetry/logging.h"

namespace weir {

absl::StatusOr<std::unique_ptr<GrpcListeners>> GrpcListeners::Bind(Options options,
                                                                   grpc::ServerBuilder* builder) {
  std::unique_ptr<GrpcListeners> listeners(new GrpcListeners(std::move(options)));
  const Options& with = listeners->options_;
  const std::string at = with.at.ToString();
  if (with.at.is_unix()) {
    SetUnixSocketOptions(builder);
    builder->AddListeningPort(at, with.credentials->OfServer(at));
  } else {
    WEIR_ASSIGN_OR_RETURN(
        listeners->tcp_,
        GrpcTcpListener::Listen(with.at, with.config.wire().congestion_control(),
                                with.config.server().clients().connections_per_second(), with.limits));
    listeners->tcp_->Register(with.credentials->OfServer(at), builder);
    listeners->bound_.port = listeners->tcp_->port();
  }
  return listeners;
}

absl::Status GrpcListeners::Open(grpc::Server* server) {
  // Without a token, every process that can connect may call. As with the other sockets, only this user and
  // root may connect.
  if (bound_.is_unix() && options_.open && chmod(bound_.path.c_str(), S_IRUSR | S_IWUSR) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot close ", bound_.path, " to others"));
  }
  ServeThisHost(server);
  return absl::OkStatus();
}

void GrpcListeners::ServeThisHost(grpc::Server* server) {
  const v1::WireConfig::Transport transport = options_.config.wire().transport();
  if (transport == v1::WireConfig::TRANSPORT_TCP) return;
  if (!bound_.is_unix()) {
    auto local = GrpcLocalListener::Start(server, bound_);
    if (local.ok()) {
      local_ = *std::move(local);
    } else {
      Lacks("Unix socket", local.status());
    }
  }
  if (transport == v1::WireConfig::TRANSPORT_UNIX) return;
  SharedMemoryServer::Options options;
  if (absl::StatusOr<std::shared_ptr<DoorbellPage>> bells = DoorbellPage::Create(); bells.ok()) {
    options.bells = *std::move(bells);
  } else {
    Lacks("rings", bells.status());
  }
  auto shared_memory = SharedMemoryServer::Start(bound_, std::move(options));
  if (shared_memory.ok()) {
    shared_memory_ = *std::move(shared_memory);
  } else {
    Lacks("shared memory", shared_memory.status());
  }
}

void GrpcListeners::Lacks(const char* what, const absl::Status& why) const {
  LogWarning("workers on this host have no ", what, " with shard ", options_.shard, ": ",
             std::string(why.message()));
}

absl::Status GrpcListeners::Accept() { return tcp_ == nullptr ? absl::OkStatus() : tcp_->Start(); }

void GrpcListeners::Close() {
  tcp_ = nullptr;
  local_ = nullptr;
}

}  // namespace weir
