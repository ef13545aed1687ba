#include "ps_server/grpc/client_limits.h"

#include <sys/socket.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/net/tcp.h"

namespace weir {
namespace {

constexpr absl::Duration kBetweenSweeps = absl::Milliseconds(100);

// nullopt: the descriptor is no open socket.
std::optional<uint64_t> CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t length = sizeof(cookie);
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) != 0) return std::nullopt;
  return cookie;
}

// "": the socket has no IP peer any more.
std::string PeerHost(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return "";
  const Ip ip = IpOf(reinterpret_cast<const sockaddr*>(&peer));
  return ip.family == AF_UNSPEC ? "" : HostOf(ip);
}

}  // namespace

ConnectionLimits::Most ConnectionLimits::Most::Of(const v1::ClientLimits& limits, size_t descriptors) {
  const size_t connections = std::min<size_t>(limits.connections(), descriptors / 2);
  return {connections, std::min<size_t>(limits.connections_of_host(), connections / 2),
          "server.clients.connections, and half of `ulimit -n`",
          "server.clients.connections_of_host, and a quarter of `ulimit -n`"};
}

bool ConnectionLimits::Admit(int fd) {
  const std::optional<Cookie> cookie = CookieOf(fd);
  std::string host = PeerHost(fd);
  if (!cookie.has_value() || host.empty()) return true;  // it is gone already
  MutexLock lock(mutex_);
  if (const auto former = connections_.find(fd); former != connections_.end()) Forget(former);
  const auto of_host = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = of_host_.find(host);
    return it == of_host_.end() ? 0 : it->second;
  };
  const absl::Time now = clock_.Now();
  if ((connections_.size() >= most_.connections || of_host() >= most_.of_host) && now >= next_sweep_) {
    next_sweep_ = now + kBetweenSweeps;
    Sweep(connections_.size() >= most_.connections ? "" : host);
  }
  const bool too_many = connections_.size() >= most_.connections;
  if (!too_many && of_host() < most_.of_host) {
    ++of_host_[host];
    connections_[fd] = {*cookie, std::move(host)};
    return true;
  }
  counters_->Count(too_many ? Limit::kConnections : Limit::kConnectionsOfHost);
  if (logged_.Due(now)) {
    LogWarning("refused a connection from ", host, ": ",
               too_many ? absl::StrCat(most_.connections, " are open, as many as may be (",
                                       most_.connections_source, ")")
                        : absl::StrCat(most_.of_host, " of that host are open, as many as may be (",
                                       most_.of_host_source, ")"),
               logged_.left_out() > 0 ? absl::StrCat("; and ", logged_.left_out(), " more before") : "");
  }
  return false;
}

size_t ConnectionLimits::open() {
  MutexLock lock(mutex_);
  Sweep("");
  return connections_.size();
}

void ConnectionLimits::Sweep(const std::string& host) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto connection = it++;
    if (!host.empty() && connection->second.host != host) continue;
    if (CookieOf(connection->first) != connection->second.cookie) Forget(connection);
  }
}

void ConnectionLimits::Forget(std::unordered_map<int, Connection>::iterator connection) {
  const auto of_host = of_host_.find(connection->second.host);
  if (--of_host->second == 0) of_host_.erase(of_host);
  connections_.erase(connection);
}

}  // namespace weir
