#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/system/unique_fd.h"
#include "ps_server/grpc/grpc_listeners.h"
#include "tests/common/grpc_generic_call.h"
#include "tests/common/open_descriptors.h"

namespace weir {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

class TestServer {
 public:
  explicit TestServer(const std::string& host, uint32_t connections_of_host = 1024)
      : limits_(ConnectionLimits::Most::Of(Limits(connections_of_host), 1'000'000), &Clock::Real(),
                &counters) {
    auto listening = GrpcTcpListener::Listen(ParseAddress(host + ":0").value(), "auto", 1000, &limits_);
    REQUIRE(listening.ok());
    listener_ = *std::move(listening);
    port_ = listener_->port();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    listener_->Register(grpc::InsecureServerCredentials(), &builder);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~TestServer() {
    EndListening();
    server_->Shutdown(system_clock::now());
  }

  uint16_t port() const { return port_; }
  void Start() { REQUIRE(listener_->Start().ok()); }
  void EndListening() { listener_ = nullptr; }

  std::shared_ptr<grpc::Channel> Channel(const std::string& host) const {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    own.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    return grpc::CreateCustomChannel(host + ":" + std::to_string(port_), grpc::InsecureChannelCredentials(),
                                     own);
  }
  // A TCP socket; `at` the address to connect it to.
  UniqueFd Socket(sockaddr_in* at) const {
    at->sin_family = AF_INET;
    at->sin_port = htons(port_);
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(fd.valid());
    return fd;
  }

  LimitCounters counters;

 private:
  static v1::ClientLimits Limits(uint32_t of_host) {
    v1::ClientLimits limits;
    limits.set_connections_of_host(of_host);
    return limits;
  }

  ConnectionLimits limits_;
  std::unique_ptr<GrpcTcpListener> listener_;
  std::unique_ptr<grpc::Server> server_;
  uint16_t port_ = 0;
};

TEST_CASE("A server is reached at each address of its host, also by clients that came before it started") {
  const std::string host = GENERATE("127.0.0.1", "[::1]", "localhost", "0.0.0.0", "[::]");
  TestServer server(host);
  REQUIRE(server.port() != 0);
  sockaddr_in at{};
  const UniqueFd early = server.Socket(&at);
  const bool has_ipv4 = host != "[::1]";
  if (has_ipv4) {
    REQUIRE(connect(early.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    server.Start();
    // The server's SETTINGS.
    pollfd greeted{early.get(), POLLIN, 0};
    CHECK(poll(&greeted, 1, 20'000) == 1);
  } else {
    server.Start();
  }
  if (has_ipv4) CHECK(CheckHealth(server.Channel("127.0.0.1"), /*wait_for_ready=*/true).ok());
  // "localhost" may stand for IPv4 alone.
  const bool has_ipv6 = host == "[::1]" || host == "[::]";
  if (has_ipv6) CHECK(CheckHealth(server.Channel("[::1]"), /*wait_for_ready=*/true).ok());
  if (host == "0.0.0.0")
    CHECK(CheckHealth(server.Channel("[::1]"), /*wait_for_ready=*/false).error_code() == grpc::UNAVAILABLE);
}

TEST_CASE("Connections stay when the listener accepts no more") {
  TestServer server("127.0.0.1");
  server.Start();
  const auto channel = server.Channel("127.0.0.1");
  CHECK(CheckHealth(channel, /*wait_for_ready=*/true).ok());
  server.EndListening();
  CHECK(CheckHealth(channel, /*wait_for_ready=*/true).ok());
  sockaddr_in at{};
  const UniqueFd late = server.Socket(&at);
  CHECK(connect(late.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0);
}

TEST_CASE("A client over the limit is reset at once, and costs no descriptor") {
  TestServer server("127.0.0.1", /*connections_of_host=*/8);
  server.Start();
  std::vector<UniqueFd> held;
  const int before = OpenDescriptors();
  sockaddr_in at{};
  for (int i = 0; i < 50; ++i) {
    held.push_back(server.Socket(&at));
    REQUIRE(connect(held.back().get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  }
  // In the order of their arrival.
  for (size_t i = 8; i < held.size(); ++i) {
    char byte;
    CHECK(recv(held[i].get(), &byte, 1, 0) <= 0);
  }
  CHECK(server.counters.of(Limit::kConnectionsOfHost) == 42);
  CHECK(OpenDescriptors() <= before + 50 + 8);
}

TEST_CASE("A server that has run out of descriptors accepts again when it has some") {
  TestServer server("127.0.0.1");
  sockaddr_in at{};
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 40; ++i) {
    crowd.push_back(server.Socket(&at));
    REQUIRE(connect(crowd.back().get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  }
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  rlimit few = usual;
  few.rlim_cur = static_cast<rlim_t>(OpenDescriptors() + 10);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  server.Start();
  // Some of the crowd are greeted, so the listener has come to where there is no descriptor for the others.
  pollfd greeted{crowd.front().get(), POLLIN, 0};
  CHECK(poll(&greeted, 1, 20'000) == 1);
  pollfd waits{crowd.back().get(), POLLIN, 0};
  CHECK(poll(&waits, 1, 0) == 0);
  crowd.clear();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(CheckHealth(server.Channel("127.0.0.1"), /*wait_for_ready=*/true).ok());
}

}  // namespace
}  // namespace weir
