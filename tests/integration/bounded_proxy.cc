#include "tests/integration/bounded_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/random.h"

namespace weir {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void Must(bool done, const char* what) {
  if (done) return;
  std::perror(what);
  std::abort();
}

// The time within which a connection notices that a partition has begun or ended.
constexpr int kNoticeMs = 10;

bool SendAll(int socket, const char* bytes, ssize_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket, bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    size -= sent;
  }
  return true;
}

// Closes with a reset, so that data on their way do not arrive.
void Reset(int socket) {
  const linger now{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(socket);
}

}  // namespace

BreakingProxy::BreakingProxy(std::string server_address, uint64_t seed, uint64_t least, uint64_t most)
    : server_port_(static_cast<uint16_t>(std::stoi(server_address.substr(server_address.rfind(':') + 1)))),
      seed_(seed),
      least_(least),
      most_(most),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in any = Loopback(0);
  Must(bind(listener_, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0, "bind");
  Must(listen(listener_, 64) == 0, "listen");
  accept_ = std::thread([this] { Accept(); });
}

BreakingProxy::~BreakingProxy() {
  eventfd_write(stop_, 1);
  accept_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
  close(stop_);
}

std::string BreakingProxy::address() const {
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  Must(getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) == 0, "getsockname");
  return "127.0.0.1:" + std::to_string(ntohs(bound.sin_port));
}

void BreakingProxy::Hold(bool requests, bool replies) {
  hold_requests_ = requests;
  hold_replies_ = replies;
}

void BreakingProxy::Heal(bool drop) {
  if (drop) ++drops_;
  Hold(false, false);
}

void BreakingProxy::Accept() {
  while (true) {
    pollfd fds[2] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const auto number = static_cast<uint32_t>(connections_.size());
    const auto bits = Philox(RandomKey(seed_, "breaking_proxy"), number, 0);
    const uint64_t bytes = least_ + bits[0] % (most_ - least_ + 1);
    connections_.emplace_back([this, client, bytes, number] { Serve(client, bytes, number % 2 == 0); });
  }
}

void BreakingProxy::Serve(int client, uint64_t bytes, bool break_reply) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(server_port_);
  const int yes = 1;
  for (int end : {client, server}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  char buffer[16384];
  const uint64_t drops = drops_;
  while (open) {
    // poll() skips negative descriptors; unread data fill the kernel's buffers.
    pollfd fds[3] = {{hold_requests_ ? -1 : client, POLLIN, 0},
                     {hold_replies_ ? -1 : server, POLLIN, 0},
                     {stop_, POLLIN, 0}};
    if (poll(fds, 3, kNoticeMs) < 0) continue;
    if (fds[2].revents != 0 || drops_ != drops) break;
    for (const bool reply : {false, true}) {
      if (!open || fds[reply ? 1 : 0].revents == 0 || (reply ? hold_replies_ : hold_requests_)) continue;
      const ssize_t size = recv(reply ? server : client, buffer, sizeof buffer, 0);
      open = size > 0;
      if (!open) break;
      if (bytes < static_cast<uint64_t>(size) && reply == break_reply) {
        ++(reply ? broken_replies_ : broken_requests_);
        open = false;
        break;
      }
      bytes -= std::min(bytes, static_cast<uint64_t>(size));
      open = SendAll(reply ? client : server, buffer, size);
    }
  }
  Reset(client);
  Reset(server);
}

}  // namespace weir
