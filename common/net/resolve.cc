#include "common/net/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
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

}  // namespace weir
