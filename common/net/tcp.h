#pragma once

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir {

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
  std::string ToString() const;
};

// The address of a socket's end; of the family AF_UNSPEC where `end` is null or no IP address.
Ip IpOf(const sockaddr* end);

// The socket's end at this address and port.
sockaddr_storage EndAt(const Ip& ip, uint16_t port);

// The host that has this address, as text: of IPv6 its /64 network, in which a host chooses its addresses as
// it likes.
std::string HostOf(Ip ip);

// The addresses that a host's name, or its address as text, stands for: in the resolver's order, each once.
// Empty: the name does not resolve. Where no DNS server answers, the resolver may take a minute.
std::vector<Ip> Resolve(const std::string& host);

// Whether only this machine's own processes reach a server that listens there: the host is an address of the
// loopback, as text, or "localhost" that stands for nothing else. No other name is, whatever it stands for
// now.
bool IsLoopback(const std::string& host);

// Resolve() for callers that must not wait for the network. Empty also where the resolver does not answer
// within 500 ms; while it still looks for the name, later calls do not wait at all. Names of this host need
// no network.
std::vector<Ip> ResolveSoon(const std::string& host);

// A non-blocking TCP socket that listens at the first available address of `host`; at "::", on all addresses
// of IPv6 and IPv4. Port 0: any free port.
// Errors say why no address is available. FailedPrecondition: it is taken, is none of this machine's, or its
// port is reserved for others. Unavailable: anything else, such as a name that does not resolve.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int port);
// The port to which a socket is bound; 0: it is no TCP socket.
uint16_t PortOf(const UniqueFd& socket);

// Accepts a waiting client of a listening socket, which is non-blocking; so is the client's, and
// close-on-exec. Unavailable: no client waits. ResourceExhausted: no descriptor or no memory is left for it.
absl::StatusOr<UniqueFd> AcceptClient(int listener);

}  // namespace weir
