#include "common/net/local_host.h"

#include <ifaddrs.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/net/resolve.h"

namespace weir {
namespace {

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
  const std::vector<Ip> ips = ResolveSoon(address.host);
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
  for (const Ip& ip : ResolveSoon(address.host)) {
    // Another program here may have the port that the server has elsewhere.
    if (!IsThisHost(ip)) continue;
    names.push_back(TcpName(service, address.port, ip.Any() ? "127.0.0.1" : ip.ToString()));
  }
  if (!names.empty()) names.push_back(TcpName(service, address.port, kAnyInterface));
  return names;
}

}  // namespace weir
