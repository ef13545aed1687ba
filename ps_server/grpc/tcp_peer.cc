#include "ps_server/grpc/tcp_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/net/local_socket.h"
#include "common/net/tcp.h"

namespace weir {
namespace {

// The value in <netinet/tcp.h>; the tables contain it in hexadecimal.
constexpr unsigned kEstablished = 1;

// IPv4 addresses are mapped to IPv6, so that all ends have one form.
struct End {
  in6_addr ip{};
  uint16_t port = 0;

  bool operator==(const End& other) const {
    return port == other.port && memcmp(&ip, &other.ip, sizeof(ip)) == 0;
  }
};

End MappedIpv4(const in_addr& ip, uint16_t port) {
  End end;
  end.ip.s6_addr[10] = end.ip.s6_addr[11] = 0xff;
  memcpy(end.ip.s6_addr + 12, &ip, sizeof(ip));
  end.port = port;
  return end;
}

std::optional<End> ParsePeer(absl::string_view peer) {
  const bool ipv6 = absl::StartsWith(peer, "ipv6:");
  if (!ipv6 && !absl::StartsWith(peer, "ipv4:")) return std::nullopt;
  peer.remove_prefix(5);
  const size_t colon = peer.rfind(':');
  uint32_t port = 0;
  if (colon == peer.npos || !absl::SimpleAtoi(peer.substr(colon + 1), &port) || port > 65535) {
    return std::nullopt;
  }
  // gRPC escapes brackets and a scope.
  std::string host = absl::StrReplaceAll(peer.substr(0, colon),
                                         {{"%5B", ""}, {"%5D", ""}, {"%25", "%"}, {"[", ""}, {"]", ""}});
  host = host.substr(0, host.find('%'));
  if (in_addr v4; inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return MappedIpv4(v4, static_cast<uint16_t>(port));
  }
  End end;
  end.port = static_cast<uint16_t>(port);
  if (inet_pton(AF_INET6, host.c_str(), &end.ip) != 1) return std::nullopt;
  return end;
}

// "0100007F:1F90": each 32 bits of the address, in this processor's byte order.
std::optional<End> ParseTableEnd(absl::string_view text) {
  const size_t colon = text.find(':');
  uint32_t port = 0;
  if (colon == text.npos || !absl::SimpleHexAtoi(text.substr(colon + 1), &port)) return std::nullopt;
  std::array<uint32_t, 4> words{};
  const size_t count = colon / 8;
  if (colon % 8 != 0 || (count != 1 && count != 4)) return std::nullopt;
  for (size_t i = 0; i < count; ++i) {
    if (!absl::SimpleHexAtoi(text.substr(8 * i, 8), &words[i])) return std::nullopt;
  }
  if (count == 1) {
    in_addr v4;
    memcpy(&v4, words.data(), sizeof(v4));
    return MappedIpv4(v4, static_cast<uint16_t>(port));
  }
  End end;
  end.port = static_cast<uint16_t>(port);
  memcpy(&end.ip, words.data(), sizeof(end.ip));
  return end;
}

sockaddr_storage SocketAddress(const End& end) {
  sockaddr_storage storage{};
  auto* const address = reinterpret_cast<sockaddr_in6*>(&storage);
  address->sin6_family = AF_INET6;
  address->sin6_addr = end.ip;
  return storage;
}

}  // namespace

absl::Status CheckTcpPeer(const std::string& peer, uint16_t port) {
  const std::optional<End> other = ParsePeer(peer);
  if (!other.has_value()) return absl::OkStatus();
  bool ours = false;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream rows(table);
    for (std::string row; std::getline(rows, row);) {
      char local[48] = "", remote[48] = "";
      unsigned state = 0, user = 0;
      unsigned long inode = 0;
      // sl local remote state queues timer retransmits uid timeout inode
      if (sscanf(row.c_str(), "%*s %47s %47s %x %*s %*s %*s %u %*s %lu", local, remote, &state, &user,
                 &inode) != 5) {
        continue;
      }
      const std::optional<End> from = ParseTableEnd(local), to = ParseTableEnd(remote);
      if (!from.has_value() || !to.has_value() || !(*from == *other) || to->port != port) continue;
      // A socket that its process has closed is listed under user 0, whatever its user was.
      if (state != kEstablished || inode == 0) continue;
      if (user != 0 && user != geteuid()) {
        return absl::PermissionDeniedError(
            absl::StrCat("the caller's process is user ", user, "'s; without a token only user ", geteuid(),
                         " and root may do this. Give the job one (--token_file=FILE)"));
      }
      ours = true;
    }
  }
  if (ours || !IsThisHost(SocketAddress(*other))) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the caller at ", peer, " is gone, so that the owner of its process is not known"));
}

std::string HostOfPeer(const std::string& peer) {
  const std::optional<End> end = ParsePeer(peer);
  if (!end.has_value()) return peer;
  const sockaddr_storage address = SocketAddress(*end);
  return HostOf(IpOf(reinterpret_cast<const sockaddr*>(&address)));
}

}  // namespace weir
