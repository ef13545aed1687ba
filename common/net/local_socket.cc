#include "common/net/local_socket.h"

#include <errno.h>
#include <ifaddrs.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/tcp.h"

namespace weir {
namespace {

using std::chrono::steady_clock;

// A client that finds the server's queue of connections full looks again after this.
constexpr std::chrono::milliseconds kQueueWait{5};
constexpr int kBacklog = 128;

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

absl::StatusOr<AbstractAddress> Abstract(const std::string& name) {
  AbstractAddress out;
  out.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(out.address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket name has ", name.size(), " characters; 1 to ",
                                                   sizeof(out.address.sun_path) - 1, " can be"));
  }
  memcpy(out.address.sun_path + 1, name.data(), name.size());
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

int TypeOf(LocalService service) { return service == LocalService::kGrpc ? SOCK_STREAM : SOCK_SEQPACKET; }

absl::StatusOr<UniqueFd> NewSocket(int type) {
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot make a Unix socket");
  return fd;
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& name, int type, steady_clock::time_point deadline) {
  WEIR_ASSIGN_OR_RETURN(const AbstractAddress to, Abstract(name));
  WEIR_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(type));
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.length) != 0) {
    const int error = errno;
    if (error == ECONNREFUSED)
      return absl::NotFoundError(absl::StrCat("no process listens on @", name,
                                              "; the server is not up, or in another network namespace"));
    if ((error != EAGAIN && error != EINTR) || steady_clock::now() >= deadline) {
      return absl::ErrnoToStatus(error, absl::StrCat("cannot connect to @", name));
    }
    std::this_thread::sleep_for(kQueueWait);
  }
  const absl::Status peer = CheckPeer(fd.get());
  if (!peer.ok()) return absl::Status(peer.code(), absl::StrCat("@", name, ": ", peer.message()));
  return fd;
}

struct Connection {
  std::string name;
  UniqueFd fd;
};

absl::StatusOr<Connection> ConnectFirst(LocalService service, const Address& server,
                                        steady_clock::time_point deadline) {
  const std::vector<std::string> names = NamesToTry(service, server);
  if (names.empty()) return absl::NotFoundError(absl::StrCat(server.ToString(), " is not on this machine"));
  absl::Status failure;
  for (const std::string& name : names) {
    absl::StatusOr<UniqueFd> fd = ConnectTo(name, TypeOf(service), deadline);
    if (fd.ok()) return Connection{name, *std::move(fd)};
    // Any other error says more than NotFound for a further name.
    if (failure.ok() || absl::IsNotFound(failure)) failure = fd.status();
  }
  return absl::Status(failure.code(), absl::StrCat(server.ToString(), ": ", failure.message()));
}

// Waits until something can be read.
bool WaitReadable(int socket, steady_clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::min(deadline, steady_clock::now()));
    pollfd entry{socket, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 60000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (left.count() == 0) return false;
  }
}

// All descriptors that recvmsg() took.
std::vector<UniqueFd> Descriptors(msghdr& header) {
  std::vector<UniqueFd> out;
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
      out.emplace_back(fd);
    }
  }
  return out;
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

absl::StatusOr<UniqueFd> ListenLocal(const std::string& name, int type) {
  WEIR_ASSIGN_OR_RETURN(const AbstractAddress at, Abstract(name));
  WEIR_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(type));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat("@", name, " is taken"));
    return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on @", name));
  }
  return fd;
}

absl::StatusOr<std::vector<UniqueFd>> ListenLocal(LocalService service, const Address& bound) {
  std::vector<UniqueFd> listeners;
  for (const std::string& name : NamesToListenOn(service, bound)) {
    WEIR_ASSIGN_OR_RETURN(UniqueFd listener, ListenLocal(name, TypeOf(service)));
    listeners.push_back(std::move(listener));
  }
  if (listeners.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(bound.ToString(), " is no address of this machine"));
  }
  return listeners;
}

absl::Status CheckPeer(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::ErrnoToStatus(errno, "cannot tell who the peer is");
  }
  if (peer.uid == geteuid() || peer.uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the peer runs as user ", peer.uid, "; only user ", geteuid(), " and root are let in"));
}

absl::StatusOr<UniqueFd> ConnectLocal(LocalService service, const Address& server,
                                      steady_clock::time_point deadline) {
  WEIR_ASSIGN_OR_RETURN(Connection connection, ConnectFirst(service, server, deadline));
  return std::move(connection.fd);
}

absl::StatusOr<std::string> LocalGrpcTarget(const Address& server, steady_clock::time_point deadline) {
  if (server.is_unix()) return server.ToString();
  WEIR_ASSIGN_OR_RETURN(const Connection connection, ConnectFirst(LocalService::kGrpc, server, deadline));
  return absl::StrCat("unix-abstract:", connection.name);
}

absl::Status SendMessage(int socket, const void* message, size_t bytes, int descriptor) {
  iovec piece{const_cast<void*>(message), bytes};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  const int error = errno;
  if (error == EAGAIN) return absl::UnavailableError("the peer has not read what was sent before");
  if (error == EPIPE || error == ECONNRESET) return absl::AbortedError("the peer has closed its end");
  return absl::ErrnoToStatus(error, "cannot send to the peer");
}

absl::StatusOr<UniqueFd> ReceiveMessage(int socket, void* message, size_t bytes,
                                        steady_clock::time_point deadline) {
  // Has room for a second descriptor, so that one too many shows, as a byte too many does.
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  iovec piece{message, bytes};
  bool reset = false;
  while (true) {
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      if (error == EAGAIN) {
        if (WaitReadable(socket, deadline)) continue;
        return absl::UnavailableError("nothing came from the peer in time");
      }
      // The peer closed without reading all that we sent. What it sent before is still there.
      if (error == ECONNRESET && !std::exchange(reset, true)) continue;
      if (error == ECONNRESET) return absl::AbortedError("the peer has closed its end");
      return absl::ErrnoToStatus(error, "cannot receive from the peer");
    }
    std::vector<UniqueFd> descriptors = Descriptors(header);
    if (received == 0 && descriptors.empty()) return absl::AbortedError("the peer has closed its end");
    if (static_cast<size_t>(received) != bytes || (header.msg_flags & MSG_TRUNC) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("a message that is not of ", bytes, " bytes"));
    }
    if (descriptors.size() > 1 || (header.msg_flags & MSG_CTRUNC) != 0) {
      return absl::InvalidArgumentError("a message with more than one descriptor");
    }
    return descriptors.empty() ? UniqueFd() : std::move(descriptors.front());
  }
}

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
