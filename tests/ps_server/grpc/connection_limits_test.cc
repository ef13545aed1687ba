#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/net/tcp.h"
#include "common/system/unique_fd.h"
#include "ps_server/grpc/client_limits.h"

namespace weir {
namespace {

// Both ends of a TCP connection from a host to this one.
struct Ends {
  UniqueFd client, server;
};

class Listener {
 public:
  explicit Listener(const std::string& host) {
    auto listening = ListenTcp(host, 0);
    REQUIRE(listening.ok());
    fd_ = *std::move(listening);
    socklen_t length = sizeof(at_);
    REQUIRE(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at_), &length) == 0);
  }

  // `from`: an address of 127.0.0.0/8.
  Ends Connect(const char* from = "127.0.0.1") {
    Ends ends;
    ends.client = UniqueFd(socket(at_.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (at_.ss_family == AF_INET) {
      sockaddr_in own{};
      own.sin_family = AF_INET;
      REQUIRE(inet_pton(AF_INET, from, &own.sin_addr) == 1);
      REQUIRE(bind(ends.client.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0);
    }
    REQUIRE(connect(ends.client.get(), reinterpret_cast<sockaddr*>(&at_), sizeof(at_)) == 0);
    pollfd waits{fd_.get(), POLLIN, 0};
    REQUIRE(poll(&waits, 1, 20'000) == 1);
    ends.server = UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(ends.server.valid());
    return ends;
  }

 private:
  UniqueFd fd_;
  sockaddr_storage at_{};
};

v1::ClientLimits Limits(uint32_t connections, uint32_t of_host) {
  v1::ClientLimits limits;
  limits.set_connections(connections);
  limits.set_connections_of_host(of_host);
  return limits;
}

struct LimitedServer {
  LimitedServer(uint32_t connections, uint32_t of_host, size_t descriptors = 1'000'000)
      : limits(ConnectionLimits::Most::Of(Limits(connections, of_host), descriptors), &clock, &counters) {}

  ManualClock clock;
  LimitCounters counters;
  ConnectionLimits limits;
  Listener listener{"127.0.0.1"};
};

TEST_CASE("A host has so many connections, and another one may come when one is gone") {
  LimitedServer server(100, 2);
  auto& [clock, counters, limits, listener] = server;
  std::vector<Ends> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(listener.Connect());
    CHECK(limits.Admit(held.back().server.get()));
  }
  const Ends third = listener.Connect();
  CHECK_FALSE(limits.Admit(third.server.get()));
  CHECK(counters.of(Limit::kConnectionsOfHost) == 1);
  CHECK(limits.open() == 2);
  // Another host is not affected.
  const Ends other = listener.Connect("127.0.0.2");
  CHECK(limits.Admit(other.server.get()));
  held.pop_back();
  CHECK(limits.open() == 2);
  // The same descriptor now may be another connection's.
  const Ends fourth = listener.Connect();
  CHECK(limits.Admit(fourth.server.get()));
  CHECK(limits.open() == 3);
  CHECK(counters.of(Limit::kConnectionsOfHost) == 1);
  CHECK(counters.of(Limit::kConnections) == 0);
}

TEST_CASE("All hosts together have so many connections") {
  LimitedServer server(4, 100);
  auto& [clock, counters, limits, listener] = server;
  std::vector<Ends> held;
  for (const char* from : {"127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3"}) {
    held.push_back(listener.Connect(from));
    CHECK(limits.Admit(held.back().server.get()));
  }
  const Ends fifth = listener.Connect("127.0.0.4");
  CHECK_FALSE(limits.Admit(fifth.server.get()));
  CHECK(counters.of(Limit::kConnections) == 1);
  held.erase(held.begin());
  // The next connection must not get the descriptor of the one that is gone.
  const UniqueFd fillers[] = {UniqueFd(dup(0)), UniqueFd(dup(0))};
  // Connections that are gone are looked for ten times a second.
  const Ends soon = listener.Connect("127.0.0.4");
  CHECK_FALSE(limits.Admit(soon.server.get()));
  clock.Advance(absl::Milliseconds(100));
  CHECK(limits.Admit(soon.server.get()));
}

TEST_CASE(
    "One host takes no more than half of the connections, and all no more than half of the descriptors") {
  LimitedServer server(4096, 1024, /*descriptors=*/8);
  auto& [clock, counters, limits, listener] = server;
  std::vector<Ends> held;
  const auto admits = [&](const char* from) {
    held.push_back(listener.Connect(from));
    return limits.Admit(held.back().server.get());
  };
  CHECK(admits("127.0.0.1"));
  CHECK(admits("127.0.0.1"));
  CHECK_FALSE(admits("127.0.0.1"));
  CHECK(admits("127.0.0.2"));
  CHECK(admits("127.0.0.2"));
  CHECK_FALSE(admits("127.0.0.3"));
  CHECK(counters.of(Limit::kConnectionsOfHost) == 1);
  CHECK(counters.of(Limit::kConnections) == 1);
}

TEST_CASE("A socket that is closed already does not count") {
  LimitedServer server(100, 1);
  auto& [clock, counters, limits, listener] = server;
  int former = -1;
  {
    const Ends gone = listener.Connect();
    former = gone.server.get();
  }
  CHECK(limits.Admit(former));
  CHECK(limits.open() == 0);
}

}  // namespace
}  // namespace weir
