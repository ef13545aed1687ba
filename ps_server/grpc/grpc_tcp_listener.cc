#include "ps_server/grpc/grpc_tcp_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/net/tcp.h"
#include "common/rpc/grpc_socket_options.h"
#include "ps_server/grpc/grpc_server_options.h"

namespace weir {
namespace {

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

}  // namespace weir
