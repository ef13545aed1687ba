#include "common/net/tcp_listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

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
