#include "ps_server/grpc/grpc_local_listener.h"

#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/local_socket.h"
#include "common/rpc/grpc_socket_options.h"

namespace weir {

absl::StatusOr<std::unique_ptr<GrpcLocalListener>> GrpcLocalListener::Start(grpc::Server* server,
                                                                            const Address& bound) {
  std::vector<UniqueFd> listeners;
  for (const std::string& name : NamesToListenOn(LocalService::kGrpc, bound)) {
    WEIR_ASSIGN_OR_RETURN(UniqueFd listener, ListenLocal(name, SOCK_STREAM));
    listeners.push_back(std::move(listener));
  }
  if (listeners.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(bound.ToString(), " is no address of this machine"));
  }
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<AcceptLoop> loop,
                        AcceptLoop::Create(std::move(listeners), [server](UniqueFd client) {
                          if (!CheckPeer(client.get()).ok()) return;
                          SetUnixSocketOptions(client.get());
                          grpc::AddInsecureChannelFromFd(server, client.Release());
                        }));
  WEIR_RETURN_IF_ERROR(loop->Start());
  return std::unique_ptr<GrpcLocalListener>(new GrpcLocalListener(std::move(loop)));
}

}  // namespace weir
