#include "common/net/local_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

// An IP address without a port. An IPv4 address that is mapped into IPv6 ("::ffff:127.0.0.1") is taken as
// IPv4.
struct Ip {
  int family = AF_UNSPEC;
  in6_addr bytes{};  // IPv4: the first 4

  bool operator==(const Ip& other) const {
    return family == other.family && memcmp(&bytes, &other.bytes, sizeof(bytes)) == 0;
  }
  bool Loopback() const { return family == AF_INET ? bytes.s6_addr[0] == 127 : IN6_IS_ADDR_LOOPBACK(&bytes); }
  bool Any() const { return IN6_IS_ADDR_UNSPECIFIED(&bytes); }
  std::string ToString() const {
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(family, &bytes, text, sizeof(text));
    return text;
  }
};

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

// The addresses in the resolver's order, each once. Empty: the name does not resolve.
std::vector<Ip> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<Ip> ips;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return ips;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Ip ip = IpOf(each->ai_addr);
    if (ip.family != AF_UNSPEC && std::find(ips.begin(), ips.end(), ip) == ips.end()) ips.push_back(ip);
  }
  freeaddrinfo(found);
  return ips;
}

bool IsThisHost(const Ip& ip) {
  if (ip.family == AF_UNSPEC) return false;
  // A connection to "any" goes to the loopback.
  if (ip.Loopback() || ip.Any()) return true;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool ours = false;
  for (const ifaddrs* each = interfaces; each != nullptr && !ours; each = each->ifa_next) {
    ours = IpOf(each->ifa_addr) == ip;
  }
  freeifaddrs(interfaces);
  return ours;
}

std::string Prefix(LocalService service) {
  return service == LocalService::kGrpc ? "weir-grpc-" : "weir-segments-";
}

std::vector<std::string> UnixNames(LocalService service, const Address& address) {
  struct stat file;
  if (stat(address.path.c_str(), &file) != 0) return {};
  return {absl::StrCat(Prefix(service), "unix-", absl::Hex(file.st_dev), "-", absl::Hex(file.st_ino))};
}

std::string TcpName(LocalService service, uint16_t port, const std::string& where) {
  return absl::StrCat(Prefix(service), port, "-", where);
}

constexpr char kAnyInterface[] = "any";

}  // namespace

bool IsThisHost(const Address& address) {
  if (address.is_unix()) return true;
  const std::vector<Ip> ips = Resolve(address.host);
  return std::any_of(ips.begin(), ips.end(), [](const Ip& ip) { return IsThisHost(ip); });
}

bool IsThisHost(const sockaddr_storage& end) {
  return end.ss_family == AF_UNIX || IsThisHost(IpOf(reinterpret_cast<const sockaddr*>(&end)));
}

std::vector<std::string> NamesToListenOn(LocalService service, const Address& bound) {
  if (bound.is_unix()) return UnixNames(service, bound);
  std::vector<std::string> names;
  for (const Ip& ip : Resolve(bound.host)) {
    if (ip.Any()) return {TcpName(service, bound.port, kAnyInterface)};
    names.push_back(TcpName(service, bound.port, ip.ToString()));
  }
  return names;
}

std::vector<std::string> NamesToTry(LocalService service, const Address& address) {
  if (address.is_unix()) return UnixNames(service, address);
  std::vector<std::string> names;
  for (const Ip& ip : Resolve(address.host)) {
    // Another program here may have the port that the server has elsewhere.
    if (!IsThisHost(ip)) continue;
    names.push_back(TcpName(service, address.port, ip.Any() ? "127.0.0.1" : ip.ToString()));
  }
  if (!names.empty()) names.push_back(TcpName(service, address.port, kAnyInterface));
  return names;
}

}  // namespace weir
