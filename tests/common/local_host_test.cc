#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <string>

#include "catch2/catch.hpp"
#include "common/net/local_socket.h"
#include "common/net/tcp.h"
#include "tests/common/socket_folder.h"

namespace weir {
namespace {

using Names = std::vector<std::string>;

Address At(const std::string& text) {
  const auto address = ParseAddress(text);
  REQUIRE(address.ok());
  return *address;
}

// A UDP socket that "connects" to the outside: its own end has the address of an interface, if there is one.
std::string InterfaceAddress() {
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);
  inet_pton(AF_INET, "192.0.2.1", &to.sin_addr);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return "";
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length);
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &own.sin_addr, text, sizeof(text));
}

TEST_CASE("which addresses are of this machine") {
  CHECK(IsThisHost(At("127.0.0.1:2222")));
  CHECK(IsThisHost(At("127.1.2.3:2222")));
  CHECK(IsThisHost(At("localhost:2222")));
  CHECK(IsThisHost(At("[::1]:2222")));
  CHECK(IsThisHost(At("0.0.0.0:2222")));
  CHECK(IsThisHost(At("unix:/nowhere.sock")));
  CHECK(IsThisHost(At("[::ffff:127.0.0.1]:2222")));
  // Reserved for documentation: no machine has these.
  CHECK_FALSE(IsThisHost(At("192.0.2.1:2222")));
  CHECK_FALSE(IsThisHost(At("[2001:db8::1]:2222")));
  CHECK_FALSE(IsThisHost(At("no-such-host.invalid:2222")));
  const std::string own = InterfaceAddress();
  if (own.empty()) {
    WARN("no interface but the loopback");
  } else {
    CHECK(IsThisHost(At(own + ":2222")));
  }
}

TEST_CASE("only addresses of the loopback, and localhost, are the loopback") {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"}) {
    INFO(host);
    CHECK(IsLoopback(host));
  }
  for (const char* host :
       {"127.0.0.1.evil.example", "127.", "127.0.0.1.", "127.example", "0.0.0.0", "::", "192.0.2.1",
        "::1.example", "localhost.example", "ip6-localhost.invalid", "1270.0.0.1", "128.0.0.1", ""}) {
    INFO(host);
    CHECK_FALSE(IsLoopback(host));
  }
}

TEST_CASE("the ends of sockets") {
  sockaddr_storage end{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(end);
  v6.sin6_family = AF_INET6;
  inet_pton(AF_INET6, "::ffff:127.0.0.1", &v6.sin6_addr);
  CHECK(IsThisHost(end));
  inet_pton(AF_INET6, "::ffff:192.0.2.1", &v6.sin6_addr);
  CHECK_FALSE(IsThisHost(end));
  auto& v4 = reinterpret_cast<sockaddr_in&>(end);
  end = {};
  v4.sin_family = AF_INET;
  inet_pton(AF_INET, "192.0.2.1", &v4.sin_addr);
  CHECK_FALSE(IsThisHost(end));
  end = {};
  CHECK_FALSE(IsThisHost(end));
}

TEST_CASE("names tell servers with the same port apart") {
  using S = LocalService;
  CHECK(NamesToListenOn(S::kGrpc, At("127.0.0.1:2222")) == Names{"weir-grpc-2222-127.0.0.1"});
  CHECK(NamesToListenOn(S::kSegments, At("127.0.0.1:2222")) == Names{"weir-segments-2222-127.0.0.1"});
  CHECK(NamesToListenOn(S::kGrpc, At("0.0.0.0:2222")) == Names{"weir-grpc-2222-any"});
  CHECK(NamesToListenOn(S::kGrpc, At("[::]:2222")) == Names{"weir-grpc-2222-any"});
  CHECK(NamesToListenOn(S::kGrpc, At("[::1]:2222")) == Names{"weir-grpc-2222-::1"});
  CHECK(NamesToListenOn(S::kGrpc, At("no-such-host.invalid:2222")).empty());

  CHECK(NamesToTry(S::kGrpc, At("127.0.0.1:2222")) ==
        Names{"weir-grpc-2222-127.0.0.1", "weir-grpc-2222-any"});
  CHECK(NamesToTry(S::kGrpc, At("127.0.0.2:2222")) ==
        Names{"weir-grpc-2222-127.0.0.2", "weir-grpc-2222-any"});
  const Names localhost = NamesToTry(S::kSegments, At("localhost:7"));
  CHECK(std::count(localhost.begin(), localhost.end(), "weir-segments-7-127.0.0.1") == 1);
  CHECK(localhost.back() == "weir-segments-7-any");
  // Not the local server that has the same port as another machine's server.
  CHECK(NamesToTry(S::kGrpc, At("192.0.2.1:2222")).empty());
}

TEST_CASE("a Unix socket's names follow its file, not its path") {
  const SocketFolder folder;
  const std::string path = folder.path() + "/s";
  const std::string other = path + "2";
  CHECK(NamesToTry(LocalService::kSegments, At("unix:" + path)).empty());
  const auto bind_at = [](const std::string& where) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    REQUIRE(where.size() < sizeof(at.sun_path));
    memcpy(at.sun_path, where.data(), where.size());
    REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    return fd;
  };
  const UniqueFd first = bind_at(path);
  const Names names = NamesToListenOn(LocalService::kSegments, At("unix:" + path));
  REQUIRE(names.size() == 1);
  CHECK(NamesToTry(LocalService::kSegments, At("unix:" + path)) == names);
  REQUIRE(symlink(path.c_str(), other.c_str()) == 0);
  CHECK(NamesToTry(LocalService::kSegments, At("unix:" + other)) == names);
  unlink(other.c_str());
  const UniqueFd second = bind_at(other);
  CHECK(NamesToTry(LocalService::kSegments, At("unix:" + other)) != names);
}

}  // namespace
}  // namespace weir
