// What clients may have of a server at most (docs/security.md): each limit, and what a client is told.
#include "common/protocol/limits.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/system/unique_fd.h"
#include "tests/common/telemetry/http_client.h"
#include "tests/ps_server/http2_client.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Over TCP: the fixture's channels may use a Unix socket, which no limit of connections knows.
v1::ClusterStatus StatusOverTcp(const ServerFixture& f, grpc::Status* status) {
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials(), own);
  v1::ClusterStatus reply;
  *status = v1::Coordinator::NewStub(channel)->Status(f.Context().get(), v1::StatusRequest(), &reply);
  return reply;
}

double Metric(const ServerFixture& f, const std::string& series) {
  const std::string page = HttpGetPage(f.cluster->server(0)->http_port(), "/metrics").body;
  const size_t at = page.find("\n" + series + " ");
  INFO(page);
  REQUIRE(at != std::string::npos);
  return std::atof(page.c_str() + at + 1 + series.size());
}

TEST_CASE("A handshake that does not end is ended by the server") {
  ServerFixture f;
  f.Start();
  const std::string preface = kPreface;
  // Nothing, half of HTTP/2's preface, and the preface without the settings that belong to it.
  std::vector<UniqueFd> silent;
  for (const std::string& said : {std::string(), preface.substr(0, preface.size() / 2), preface}) {
    silent.push_back(HttpConnect(f.port()));
    REQUIRE(send(silent.back().get(), said.data(), said.size(), 0) == static_cast<ssize_t>(said.size()));
  }
  // 20 s, all at once. The server's own settings come before the end.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const UniqueFd& fd : silent) {
    ssize_t got = 1;
    while (got > 0) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{fd.get(), POLLIN, 0};
      REQUIRE(poll(&ready, 1, std::max<int>(0, static_cast<int>(left.count()))) == 1);
      char bytes[1024];
      got = recv(fd.get(), bytes, sizeof bytes, 0);
    }
  }
}

TEST_CASE("A host that holds as many connections as it may gets no further one until it gives one back") {
  ServerFixture f;
  f.config.mutable_server()->mutable_clients()->set_connections_of_host(8);
  f.http_port = 0;
  f.Start();
  std::vector<UniqueFd> held;
  // The server accepts in the order in which clients connect, and resets what is too much.
  for (int i = 0; i < 8; ++i) held.push_back(HttpConnect(f.port()));
  UniqueFd one_more = HttpConnect(f.port());
  pollfd ends{one_more.get(), POLLIN, 0};
  REQUIRE(poll(&ends, 1, 20'000) == 1);
  char byte;
  CHECK(recv(one_more.get(), &byte, 1, 0) <= 0);
  CHECK(Metric(f, "weir_limit_reached_total{shard=\"0\",limit=\"connections_of_host\"}") == 1);
  CHECK(Metric(f, "weir_connections{shard=\"0\"}") == 8);
  for (const UniqueFd& fd : held) {
    pollfd open{fd.get(), POLLIN, 0};
    CHECK((poll(&open, 1, 0) == 0 || recv(fd.get(), &byte, 1, MSG_PEEK) > 0));
  }
  held.clear();
  // The server hears of that; a client that is refused tries again.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  grpc::Status status;
  do {
    StatusOverTcp(f, &status);
  } while (!status.ok() && std::chrono::steady_clock::now() < deadline);
  CHECK(status.ok());
}

TEST_CASE("A connection is told how many calls it may have under way") {
  ServerFixture f;
  f.config.mutable_server()->mutable_clients()->set_calls_of_connection(11);
  f.Start();
  Http2Client client(f.port());
  Http2Client::Frame settings;
  REQUIRE(client.Receive(Http2Client::kSettings, &settings));
  // SETTINGS_MAX_CONCURRENT_STREAMS is number 3.
  CHECK_THAT(settings.payload, Contains(std::string("\x00\x03\x00\x00\x00\x0b", 6)));
}

TEST_CASE("A caller that joins too often is told so, and may call what else it likes") {
  ServerFixture f;
  f.config.mutable_server()->mutable_clients()->set_joins_per_second(1);
  f.http_port = 0;
  f.Start();
  v1::JoinRequest request = f.JoinRequest();
  request.set_task("");  // refused at once
  std::vector<grpc::Status> statuses;
  for (int i = 0; i < 100; ++i) {
    v1::JoinReply reply;
    statuses.push_back(f.coordinator->Join(f.Context().get(), request, &reply));
  }
  CHECK(statuses.front().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  const auto limited = std::count_if(statuses.begin(), statuses.end(), [](const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::UNAVAILABLE;
  });
  // Ten at once, and one more for each second of the loop.
  CHECK(limited > 0);
  CHECK(limited <= 90);
  CHECK_THAT(statuses.back().error_message(),
             Contains("more than 1 Joins a second") && Contains("server.clients.joins_per_second"));
  CHECK(Metric(f, "weir_limit_reached_total{shard=\"0\",limit=\"joins\"}") == limited);
  v1::ClusterStatus status;
  CHECK(f.coordinator->Status(f.Context().get(), v1::StatusRequest(), &status).ok());
}

TEST_CASE("A request that is larger than its method's can be is refused before it is parsed") {
  ServerFixture f;
  f.http_port = 0;
  f.Start();
  v1::LeaveRequest leave;
  leave.set_reason(std::string(100'000, 'x'));
  v1::LeaveReply reply;
  const grpc::Status status = f.coordinator->Leave(f.Context().get(), leave, &reply);
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(status.error_message(), Contains("at most 65536 are allowed"));
  CHECK(Metric(f, "weir_limit_reached_total{shard=\"0\",limit=\"request_bytes\"}") == 1);
}

TEST_CASE("docs/security.md lists each limit") {
  std::ostringstream page;
  page << std::ifstream("docs/security.md").rdbuf();
  for (size_t i = 0; i < kLimits; ++i) {
    const std::string row = "| `" + std::string(NameOf(static_cast<Limit>(i))) + "` |";
    INFO(row);
    CHECK(page.str().find(row) != std::string::npos);
  }
}

TEST_CASE("A status tells its limit, and no other does") {
  for (size_t i = 0; i < kLimits; ++i) {
    const auto limit = static_cast<Limit>(i);
    CHECK(LimitOf(LimitReached(limit, absl::StatusCode::kUnavailable, "full")) == limit);
  }
  CHECK(LimitOf(absl::UnavailableError("full")) == std::nullopt);
}

}  // namespace
}  // namespace weir
