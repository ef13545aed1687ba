#include "bench/socket_io.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

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

absl::StatusOr<int> DialTcp(const std::string& address, const std::function<void(int)>& tune) {
  const size_t colon = address.rfind(':');
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return absl::NotFoundError(absl::StrCat(address, " does not resolve"));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  tune(fd);
  const int rc = connect(fd, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (rc != 0) return absl::ErrnoToStatus(errno, "connect");
  return fd;
}

}  // namespace weir::bench
