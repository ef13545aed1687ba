#include "ps_server/grpc/grpc_tcp_listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <utility>

#include "common/base/status_macros.h"
#include "common/net/resolve.h"
#include "common/net/tcp_listener.h"
#include "common/rpc/grpc_socket_options.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"
#include "ps_server/grpc/grpc_server_options.h"

namespace weir {
namespace {

// The pause when the system has no descriptor or no memory for another client.
constexpr int kExhaustedWaitMs = 100;

absl::StatusOr<uint16_t> PortOf(const UniqueFd& listener) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the port of a socket");
  }
  // Both families have the port in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

// The texts of the addresses to listen at, in the order in which to try them.
std::vector<std::string> HostsOf(const std::string& host) {
  std::vector<std::string> hosts;
  for (const Ip& ip : Resolve(host)) {
    // "::" takes IPv4, too. A machine without IPv6 has 0.0.0.0 alone.
    if (ip.Any()) return {"::", "0.0.0.0"};
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

absl::StatusOr<std::unique_ptr<GrpcTcpListener>> GrpcTcpListener::Listen(
    const Address& at, const std::string& congestion_control, ConnectionLimits* limits) {
  WEIR_ASSIGN_OR_RETURN(auto set_options, OptionsOfAccepted(congestion_control));
  std::vector<UniqueFd> listeners;
  uint16_t port = at.port;
  absl::Status why;
  for (const std::string& host : HostsOf(at.host)) {
    absl::StatusOr<UniqueFd> listener = ListenTcp(host, port);
    if (!listener.ok()) {
      why.Update(listener.status());
      continue;
    }
    WEIR_ASSIGN_OR_RETURN(port, PortOf(*listener));
    listeners.push_back(*std::move(listener));
    if (host == "::") break;
  }
  if (listeners.empty()) return why;
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<GrpcTcpListener>(
      new GrpcTcpListener(std::move(listeners), port, std::move(stop), std::move(set_options), limits));
}

GrpcTcpListener::GrpcTcpListener(std::vector<UniqueFd> listeners, uint16_t port, UniqueFd stop,
                                 std::function<void(int fd)> set_options, ConnectionLimits* limits)
    : listeners_(std::move(listeners)),
      port_(port),
      stop_(std::move(stop)),
      set_options_(std::move(set_options)),
      limits_(limits) {}

GrpcTcpListener::~GrpcTcpListener() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void GrpcTcpListener::Register(std::shared_ptr<grpc::ServerCredentials> credentials,
                               grpc::ServerBuilder* builder) {
  acceptor_ = builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, std::move(credentials));
}

void GrpcTcpListener::Start() {
  thread_ = std::thread([this] { Run(); });
}

void GrpcTcpListener::Run() {
  std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
  while (true) {
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    bool exhausted = false;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0 && !AcceptAll(entries[i].fd)) exhausted = true;
    }
    if (exhausted) poll(entries.data(), 1, kExhaustedWaitMs);
  }
}

bool GrpcTcpListener::AcceptAll(int listener) {
  while (true) {
    UniqueFd client(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      const int error = errno;
      if (error == EAGAIN) return true;
      if (error == ECONNABORTED || error == EINTR) continue;
      if (logged_.Due(Clock::Awake().Now())) {
        LogWarning("cannot accept a connection: ", strerror(error), "; tries again");
      }
      return false;
    }
    if (!limits_->Admit(client.get())) {
      Reset(std::move(client));
      continue;
    }
    set_options_(client.get());
    const auto timeout = static_cast<unsigned>(kClientPing.count());
    setsockopt(client.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = client.Release();
    acceptor_->HandleNewConnection(&connection);
  }
}

}  // namespace weir
