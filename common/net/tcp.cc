#include "common/net/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

constexpr std::chrono::milliseconds kSoon{500};

// The addresses of `host` by getaddrinfo() with `flags`; nullopt: it has none.
std::optional<std::vector<Ip>> Find(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  std::vector<Ip> ips;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Ip ip = IpOf(each->ai_addr);
    if (ip.family != AF_UNSPEC && std::find(ips.begin(), ips.end(), ip) == ips.end()) ips.push_back(ip);
  }
  freeaddrinfo(found);
  return ips;
}

// Looks names up on threads of their own, one for each name, since nothing ends getaddrinfo() early.
class LookUps {
 public:
  std::vector<Ip> Get(const std::string& host) {
    const auto deadline = std::chrono::steady_clock::now() + kSoon;
    MutexLock lock(mutex_);
    std::shared_ptr<LookUp>& under_way = under_way_[host];
    if (under_way != nullptr) return {};
    const auto look_up = under_way = std::make_shared<LookUp>();
    // This object lives as long as the process.
    absl::StatusOr<std::thread> thread = MakeThread("look up a name", [this, host, look_up] {
      std::vector<Ip> ips = Resolve(host);
      MutexLock done(mutex_);
      look_up->ips = std::move(ips);
      look_up->done = true;
      under_way_.erase(host);
      changed_.NotifyAll();
    });
    if (!thread.ok()) {
      // As where the resolver does not answer; the next call tries again.
      under_way_.erase(host);
      return {};
    }
    thread->detach();
    while (!look_up->done && changed_.WaitUntil(mutex_, deadline)) {
    }
    return look_up->ips;
  }

 private:
  struct LookUp {
    bool done = false;
    std::vector<Ip> ips;
  };

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::shared_ptr<LookUp>> under_way_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Why(int error) {
  switch (error) {
    case EADDRINUSE:
      return absl::FailedPreconditionError("another process listens there; take another port, or end it");
    case EADDRNOTAVAIL:
      return absl::FailedPreconditionError("the address is none of this machine's");
    case EACCES:
      return absl::FailedPreconditionError(
          "this user may not have that port: those below 1024 are for root and CAP_NET_BIND_SERVICE; take "
          "another");
    default:
      return absl::UnavailableError(std::strerror(error));
  }
}

}  // namespace

std::string Ip::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, &bytes, text, sizeof(text));
  return text;
}

std::string HostOf(Ip ip) {
  if (ip.family == AF_INET || ip.Loopback()) return ip.ToString();
  memset(ip.bytes.s6_addr + 8, 0, 8);
  return ip.ToString() + "/64";
}

Ip IpOf(const sockaddr* end) {
  Ip ip;
  if (end == nullptr) return ip;
  if (end->sa_family == AF_INET) {
    ip.family = AF_INET;
    memcpy(&ip.bytes, &reinterpret_cast<const sockaddr_in*>(end)->sin_addr, sizeof(in_addr));
  } else if (end->sa_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(end)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
      ip.family = AF_INET;
      memcpy(&ip.bytes, address.s6_addr + 12, sizeof(in_addr));
    } else {
      ip.family = AF_INET6;
      ip.bytes = address;
    }
  }
  return ip;
}

sockaddr_storage EndAt(const Ip& ip, uint16_t port) {
  sockaddr_storage end{};
  if (ip.family == AF_INET) {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&end);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    memcpy(&v4->sin_addr, &ip.bytes, sizeof(in_addr));
  } else {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&end);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    v6->sin6_addr = ip.bytes;
  }
  return end;
}

std::vector<Ip> Resolve(const std::string& host) { return Find(host, 0).value_or(std::vector<Ip>()); }

bool IsLoopback(const std::string& host) {
  const std::vector<Ip> ips =
      Find(host, host == "localhost" ? 0 : AI_NUMERICHOST).value_or(std::vector<Ip>());
  return !ips.empty() && std::all_of(ips.begin(), ips.end(), [](const Ip& ip) { return ip.Loopback(); });
}

std::vector<Ip> ResolveSoon(const std::string& host) {
  static auto& look_ups = *new LookUps;
  if (std::optional<std::vector<Ip>> ips = Find(host, AI_NUMERICHOST); ips.has_value())
    return *std::move(ips);
  return look_ups.Get(host);
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* addresses = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &addresses);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  absl::Status why = absl::UnavailableError("the name stands for no address");
  bool no_ipv6 = false;
  for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1, no = 0;
    // "::" stands for all addresses, those of IPv4 included.
    if (fd.valid() && a->ai_family == AF_INET6) {
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    }
    if (fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
      freeaddrinfo(addresses);
      return fd;
    }
    no_ipv6 = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
    why = Why(errno);
  }
  freeaddrinfo(addresses);
  return no_ipv6 && host == "::" ? ListenTcp("0.0.0.0", port) : why;
}

uint16_t PortOf(const UniqueFd& socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return 0;
  if (own.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port);
  if (own.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port);
  return 0;
}

absl::StatusOr<UniqueFd> AcceptClient(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) return fd;
  const int error = errno;
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot accept a client: ", strerror(error)));
  }
  return absl::UnavailableError(strerror(error));
}

}  // namespace weir
