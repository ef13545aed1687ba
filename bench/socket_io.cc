#include "bench/socket_io.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weir::bench {

bool Receive(int fd, void* to, size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = recv(fd, at, bytes, MSG_WAITALL);
    if (n <= 0) return false;
    at += n;
    bytes -= n;
  }
  return true;
}

bool Send(int fd, const void* from, size_t bytes) {
  for (const char* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= n;
  }
  return true;
}

void SetNoDelay(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

absl::StatusOr<UniqueFd> DialTcp(const std::string& address, const std::function<void(int)>& tune) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return absl::NotFoundError(absl::StrCat(address, " does not resolve"));
  }
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  tune(fd.get());
  const int rc = connect(fd.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (rc != 0) return absl::ErrnoToStatus(errno, "connect");
  return fd;
}

UniqueFd Accept(const UniqueFd& listener) {
  while (true) {
    pollfd waiting{listener.get(), POLLIN, 0};
    poll(&waiting, 1, -1);
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) return fd;
  }
}

}  // namespace weir::bench
