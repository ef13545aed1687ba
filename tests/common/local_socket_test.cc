#include "common/net/local_socket.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "catch2/catch.hpp"
#include "common/net/tcp.h"
#include "tests/common/open_descriptors.h"
#include "tests/common/reserved_address.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(20); }

std::pair<UniqueFd, UniqueFd> Pair() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

struct Message {
  int number = 0;
  int second = 0;
};

TEST_CASE("a client finds a server by its address") {
  const ReservedAddress reserved;
  const Address& address = reserved.get();
  CHECK(absl::IsNotFound(ConnectLocal(LocalService::kSegments, address, Soon()).status()));
  CHECK(absl::IsNotFound(LocalGrpcTarget(address, Soon()).status()));
  const std::string name = NamesToListenOn(LocalService::kSegments, address).at(0);
  auto listener = ListenLocal(name, SOCK_SEQPACKET);
  REQUIRE(listener.ok());
  CHECK(absl::IsAlreadyExists(ListenLocal(name, SOCK_SEQPACKET).status()));
  CHECK(absl::IsUnavailable(AcceptClient(listener->get()).status()));
  auto client = ConnectLocal(LocalService::kSegments, address, Soon());
  REQUIRE(client.ok());
  auto server = AcceptClient(listener->get());
  REQUIRE(server.ok());
  CHECK(CheckPeer(server->get()).ok());
  for (int fd : {listener->get(), client->get(), server->get()}) {
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  }
  // Another service, and a server on another machine with the same port.
  CHECK(absl::IsNotFound(LocalGrpcTarget(address, Soon()).status()));
  Address elsewhere = address;
  elsewhere.host = "192.0.2.1";
  CHECK(absl::IsNotFound(ConnectLocal(LocalService::kSegments, elsewhere, Soon()).status()));
}

TEST_CASE("a server on all interfaces is found under each") {
  const ReservedAddress reserved;
  Address any = reserved.get();
  any.host = "0.0.0.0";
  auto listener = ListenLocal(NamesToListenOn(LocalService::kGrpc, any).at(0), SOCK_STREAM);
  REQUIRE(listener.ok());
  const auto target = LocalGrpcTarget(reserved.get(), Soon());
  REQUIRE(target.ok());
  CHECK(*target == "unix-abstract:weir-grpc-" + std::to_string(any.port) + "-any");
}

TEST_CASE("gRPC on a Unix socket's own path needs no other") {
  Address address;
  address.path = "/run/weir.sock";
  CHECK(LocalGrpcTarget(address, Soon()).value() == "unix:/run/weir.sock");
}

TEST_CASE("who listens as another user is not trusted") {
  if (geteuid() != 0) {
    WARN("only root can become another user");
    return;
  }
  const ReservedAddress reserved;
  const Address& address = reserved.get();
  const std::string name = NamesToListenOn(LocalService::kSegments, address).at(0);
  int ready[2], done[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(done) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // The child closes its copy of the end that tells it when to exit.
    close(done[1]);
    char byte = 0;
    const bool set = setgid(65534) == 0 && setuid(65534) == 0;
    const auto listener = ListenLocal(name, SOCK_SEQPACKET);
    byte = set && listener.ok() ? 1 : 0;
    if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 0) _exit(1);
    // Root's connection waits, and is accepted.
    const auto client = AcceptClient(listener->get());
    _exit(client.ok() && CheckPeer(client->get()).ok() ? 0 : 2);
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(byte == 1);
  const absl::Status status = ConnectLocal(LocalService::kSegments, address, Soon()).status();
  CHECK(absl::IsPermissionDenied(status));
  CHECK(status.message().find("user 65534") != std::string::npos);
  close(done[1]);
  int exit = 0;
  REQUIRE(waitpid(child, &exit, 0) == child);
  CHECK(WEXITSTATUS(exit) == 0);
  for (int fd : {ready[0], ready[1], done[0]}) close(fd);
}

TEST_CASE("messages and descriptors") {
  const int before = OpenDescriptors();
  {
    auto [a, b] = Pair();
    Message received;
    CHECK(absl::IsUnavailable(ReceiveMessage(b.get(), &received, sizeof(received)).status()));
    const Message sent{7, 8};
    REQUIRE(SendMessage(a.get(), &sent, sizeof(sent)).ok());
    auto none = ReceiveMessage(b.get(), &received, sizeof(received), Soon());
    REQUIRE(none.ok());
    CHECK_FALSE(none->valid());
    CHECK(received.number == 7);

    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const UniqueFd read_end(ends[0]), write_end(ends[1]);
    REQUIRE(SendMessage(a.get(), &sent, sizeof(sent), write_end.get()).ok());
    auto passed = ReceiveMessage(b.get(), &received, sizeof(received), Soon());
    REQUIRE(passed.ok());
    REQUIRE(passed->valid());
    CHECK((fcntl(passed->get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(write(passed->get(), "x", 1) == 1);
    char byte = 0;
    CHECK(read(read_end.get(), &byte, 1) == 1);
    CHECK(byte == 'x');

    // The last messages of a peer that did not read ours still arrive.
    REQUIRE(SendMessage(b.get(), &sent, sizeof(sent)).ok());
    REQUIRE(SendMessage(a.get(), &sent, sizeof(sent)).ok());
    a.Close();
    CHECK(ReceiveMessage(b.get(), &received, sizeof(received), Soon()).ok());
    CHECK(absl::IsAborted(ReceiveMessage(b.get(), &received, sizeof(received), Soon()).status()));
    CHECK(absl::IsAborted(SendMessage(b.get(), &sent, sizeof(sent))));
  }
  CHECK(OpenDescriptors() == before);
}

TEST_CASE("messages of the wrong kind are refused and leak nothing") {
  const int before = OpenDescriptors();
  {
    auto [a, b] = Pair();
    Message received;
    const std::array<char, 64> bytes{};
    const auto receive = [&, socket = b.get()] {
      return ReceiveMessage(socket, &received, sizeof(received), Soon()).status();
    };
    for (size_t length : {size_t{1}, sizeof(received) - 1, sizeof(received) + 1, bytes.size()}) {
      REQUIRE(SendMessage(a.get(), bytes.data(), length, a.get()).ok());
      CHECK(absl::IsInvalidArgument(receive()));
    }
    for (int count : {2, 3, 40}) {
      alignas(cmsghdr) char control[CMSG_SPACE(40 * sizeof(int))] = {};
      iovec piece{const_cast<char*>(bytes.data()), sizeof(received)};
      msghdr header{};
      header.msg_iov = &piece;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(static_cast<size_t>(count) * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(static_cast<size_t>(count) * sizeof(int));
      for (int i = 0; i < count; ++i) {
        const int fd = a.get();
        memcpy(CMSG_DATA(rights) + static_cast<size_t>(i) * sizeof(int), &fd, sizeof(fd));
      }
      REQUIRE(sendmsg(a.get(), &header, 0) == static_cast<ssize_t>(sizeof(received)));
      CHECK(absl::IsInvalidArgument(receive()));
    }
    // A message without a byte, but with a descriptor.
    REQUIRE(SendMessage(a.get(), bytes.data(), 0, a.get()).ok());
    CHECK(absl::IsInvalidArgument(receive()));
    CHECK(OpenDescriptors() == before + 2);
  }
  CHECK(OpenDescriptors() == before);
}

TEST_CASE("a peer that does not read stops nobody") {
  auto [a, b] = Pair();
  const Message message;
  absl::Status status;
  int sent = 0;
  for (; status.ok() && sent < 1000000; ++sent) status = SendMessage(a.get(), &message, sizeof(message));
  CHECK(absl::IsUnavailable(status));
  Message received;
  for (int i = 1; i < sent; ++i) {
    if (!ReceiveMessage(b.get(), &received, sizeof(received)).ok()) FAIL("a message is missing");
  }
  CHECK(SendMessage(a.get(), &message, sizeof(message)).ok());
}

}  // namespace
}  // namespace weir
