#include "ps_server/grpc/connection_limits.h"

#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/resolve.h"
#include "common/telemetry/logging.h"

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
std::string HostOf(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return "";
  Ip ip = IpOf(reinterpret_cast<const sockaddr*>(&peer));
  if (ip.family == AF_UNSPEC) return "";
  if (ip.family == AF_INET || ip.Loopback()) return ip.ToString();
  memset(ip.bytes.s6_addr + 8, 0, 8);
  return absl::StrCat(ip.ToString(), "/64");
}

}  // namespace

ConnectionLimits::ConnectionLimits(const v1::ClientLimits& limits, size_t descriptors, const Clock* clock,
                                   LimitCounters* counters)
    : most_(std::min<size_t>(limits.connections(), descriptors / 2)),
      most_of_host_(std::min<size_t>(limits.connections_of_host(), most_ / 2)),
      clock_(*clock),
      counters_(counters) {}

bool ConnectionLimits::Admit(int fd) {
  const std::optional<Cookie> cookie = CookieOf(fd);
  std::string host = HostOf(fd);
  if (!cookie.has_value() || host.empty()) return true;  // it is gone already
  MutexLock lock(mutex_);
  if (const auto former = connections_.find(fd); former != connections_.end()) Forget(former);
  const auto of_host = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = of_host_.find(host);
    return it == of_host_.end() ? 0 : it->second;
  };
  const absl::Time now = clock_.Now();
  if ((connections_.size() >= most_ || of_host() >= most_of_host_) && now >= next_sweep_) {
    next_sweep_ = now + kBetweenSweeps;
    Sweep(connections_.size() >= most_ ? "" : host);
  }
  const bool too_many = connections_.size() >= most_;
  if (!too_many && of_host() < most_of_host_) {
    ++of_host_[host];
    connections_[fd] = {*cookie, std::move(host)};
    return true;
  }
  counters_->Count(too_many ? Limit::kConnections : Limit::kConnectionsOfHost);
  if (logged_.Due(now)) {
    LogWarning("refused a connection from ", host, ": ",
               too_many ? absl::StrCat(most_,
                                       " are open, as many as may be (server.clients.connections, and half "
                                       "of `ulimit -n`)")
                        : absl::StrCat(most_of_host_,
                                       " of that host are open, as many as may be "
                                       "(server.clients.connections_of_host, and a quarter of "
                                       "`ulimit -n`)"),
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
