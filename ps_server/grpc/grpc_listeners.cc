#include "ps_server/grpc/grpc_listeners.h"

#include <errno.h>
#include <grpc/compression.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/local_socket.h"
#include "common/net/tcp.h"
#include "common/protocol/limits.h"
#include "common/rpc/grpc_socket_options.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// For so long may a handshake last, of TLS and of HTTP/2 together.
constexpr milliseconds kHandshake{20'000};
// A connection without a call is closed after this time. Its client opens another one when it needs one.
constexpr milliseconds kIdle{300'000};
// gRPC's own reflection has a thread for each stream. More streams than this are refused.
constexpr int kThreads = 4;

constexpr int kHealthMessageBytes = 4096;  // more than any name of a service needs
constexpr int kHealthCalls = 8;
constexpr size_t kHealthMemory = 16 << 20;
constexpr milliseconds kHealthIdle{30'000}, kHealthAge{300'000};

void Set(const char* argument, int64_t value, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(argument, static_cast<int>(value));
}

// `memory_bytes`: for what has come and was not taken yet; 0: any.
void SetLimits(int message_bytes, uint32_t calls_of_connection, size_t memory_bytes,
               grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(message_bytes);
  Set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshake.count(), builder);
  Set(GRPC_ARG_MAX_CONCURRENT_STREAMS, calls_of_connection, builder);
  // Nothing is sent compressed, and gRPC would unpack a message before its size is checked.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  Set(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0, builder);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kThreads);
  if (memory_bytes > 0) quota.Resize(memory_bytes);
  builder->SetResourceQuota(quota);
}

// Clients may use up the limit of so many seconds at once.
constexpr double kConnectionSeconds = 2.5;

// The texts of the addresses to listen at.
std::vector<std::string> HostsOf(const std::string& host) {
  std::vector<std::string> hosts;
  for (const Ip& ip : Resolve(host)) {
    hosts.push_back(ip.ToString());
  }
  return hosts.empty() ? std::vector<std::string>{host} : hosts;
}

// The connection ends with RST, so that nothing of it is left in the kernel.
void Reset(UniqueFd fd) {
  const linger at_once{1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

}  // namespace

// ---- options

void SetServerOptions(const v1::ClientLimits& limits, size_t memory_bytes, grpc::ServerBuilder* builder) {
  SetLimits(kMaxMessageBytes, limits.calls_of_connection(), memory_bytes, builder);
  // Clients ping while a call is parked, to notice a dead server; by default gRPC treats this as abuse.
  Set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500, builder);
  // The server pings clients too: the streams of a client that is gone or stopped end, and release what they
  // hold.
  Set(GRPC_ARG_KEEPALIVE_TIME_MS, kClientPing.count(), builder);
  Set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kClientPing.count(), builder);
  Set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0, builder);
  Set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdle.count(), builder);
}

void SetHealthOptions(grpc::ServerBuilder* builder) {
  SetLimits(kHealthMessageBytes, kHealthCalls, kHealthMemory, builder);
  // Whoever watches connects again.
  Set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kHealthIdle.count(), builder);
  Set(GRPC_ARG_MAX_CONNECTION_AGE_MS, kHealthAge.count(), builder);
  Set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kHealthIdle.count(), builder);
}

// ---- sockets

absl::StatusOr<std::unique_ptr<GrpcTcpListener>> GrpcTcpListener::Listen(
    const Address& at, const std::string& congestion_control, double connections_per_second,
    ConnectionLimits* limits) {
  WEIR_ASSIGN_OR_RETURN(auto set_options, OptionsOfAccepted(congestion_control));
  std::vector<UniqueFd> sockets;
  uint16_t port = at.port;
  absl::Status why;
  for (const std::string& host : HostsOf(at.host)) {
    absl::StatusOr<UniqueFd> socket = ListenTcp(host, port);
    if (!socket.ok()) {
      why.Update(socket.status());
      continue;
    }
    port = PortOf(*socket);
    sockets.push_back(*std::move(socket));
  }
  if (sockets.empty()) return why;
  std::unique_ptr<GrpcTcpListener> listener(new GrpcTcpListener(port, std::move(set_options), limits));
  WEIR_ASSIGN_OR_RETURN(
      listener->loop_,
      AcceptLoop::Create(std::move(sockets),
                         [to = listener.get()](UniqueFd client) { to->Serve(std::move(client)); },
                         {connections_per_second, kConnectionSeconds * connections_per_second}));
  return listener;
}

void GrpcTcpListener::Register(std::shared_ptr<grpc::ServerCredentials> credentials,
                               grpc::ServerBuilder* builder) {
  acceptor_ = builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, std::move(credentials));
}

void GrpcTcpListener::Serve(UniqueFd client) {
  if (!limits_->Admit(client.get())) return Reset(std::move(client));
  set_options_(client.get());
  const auto timeout = static_cast<unsigned>(kClientPing.count());
  setsockopt(client.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = client.Release();
  acceptor_->HandleNewConnection(&connection);
}

absl::StatusOr<std::unique_ptr<AcceptLoop>> ServeLocalSocket(grpc::Server* server, const Address& bound) {
  WEIR_ASSIGN_OR_RETURN(std::vector<UniqueFd> listeners, ListenLocal(LocalService::kGrpc, bound));
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<AcceptLoop> loop,
                        AcceptLoop::Create(std::move(listeners), [server](UniqueFd client) {
                          if (!CheckPeer(client.get()).ok()) return;
                          SetUnixSocketOptions(client.get());
                          grpc::AddInsecureChannelFromFd(server, client.Release());
                        }));
  WEIR_RETURN_IF_ERROR(loop->Start());
  return loop;
}

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
    auto local = ServeLocalSocket(server, bound_);
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
