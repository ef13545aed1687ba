#include "ps_server/grpc/grpc_local_listener.h"

#include <errno.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/local_host.h"
#include "common/net/local_socket.h"
#include "common/rpc/grpc_socket_options.h"

namespace weir {
namespace {

// The pause when no file descriptor is left for another client.
constexpr int kExhaustedWaitMs = 100;

}  // namespace

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
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<GrpcLocalListener>(
      new GrpcLocalListener(server, std::move(listeners), std::move(stop)));
}

GrpcLocalListener::GrpcLocalListener(grpc::Server* server, std::vector<UniqueFd> listeners, UniqueFd stop)
    : server_(server), listeners_(std::move(listeners)), stop_(std::move(stop)), thread_([this] { Run(); }) {}

GrpcLocalListener::~GrpcLocalListener() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void GrpcLocalListener::Run() {
  std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
  while (true) {
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      absl::StatusOr<UniqueFd> client = AcceptLocal(entries[i].fd);
      if (client.ok() && !CheckPeer(client->get()).ok()) {
        client->Close();
      } else if (client.ok()) {
        SetUnixSocketOptions(client->get());
        grpc::AddInsecureChannelFromFd(server_, client->Release());
      } else if (absl::IsResourceExhausted(client.status())) {
        poll(entries.data(), 1, kExhaustedWaitMs);
      }
    }
  }
}

}  // namespace weir
