#include "common/telemetry/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

// What the server sends for a request on a connection of its own; empty if it cannot be reached. Plain
// sockets, so that the test does not lean on the library under it.
std::string Exchange(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string response;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) response.append(buffer, got);
  }
  close(fd);
  return response;
}

std::string Get(int port, const std::string& path) {
  return Exchange(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

std::unique_ptr<HttpServer> MustStart(const HttpServer::Options& options) {
  auto server = HttpServer::Start(options);
  REQUIRE(server.ok());
  return std::move(*server);
}

TEST_CASE("metrics, health and pages") {
  MetricRegistry registry;
  registry.AddCounter("weir_pushes_total", "Pushes.").Add(3);
  std::atomic<bool> healthy{true};
  HttpServer::Options options;
  options.metrics = &registry;
  options.health = [&] {
    return healthy ? absl::OkStatus() : absl::UnavailableError("no coordinator at b:2222");
  };
  const auto server = MustStart(options);
  CHECK(server->address() == "127.0.0.1:" + std::to_string(server->port()));

  const std::string metrics = Get(server->port(), "/metrics");
  CHECK_THAT(metrics, Catch::StartsWith("HTTP/1.1 200") && Catch::EndsWith("\nweir_pushes_total 3\n"));
  CHECK_THAT(metrics, Catch::Contains("Content-Type: text/plain; version=0.0.4"));

  CHECK_THAT(Get(server->port(), "/healthz"),
             Catch::StartsWith("HTTP/1.1 200") && Catch::EndsWith("\r\nok\n"));
  healthy = false;
  CHECK_THAT(Get(server->port(), "/healthz"),
             Catch::StartsWith("HTTP/1.1 503") && Catch::EndsWith("no coordinator at b:2222\n"));

  CHECK_THAT(Get(server->port(), "/"),
             Catch::StartsWith("HTTP/1.1 404") && Catch::Contains("/healthz, /metrics"));
  server->Handle("/", "text/html", [] { return "<p>hello"; });
  CHECK_THAT(Get(server->port(), "/"),
             Catch::Contains("Content-Type: text/html") && Catch::EndsWith("<p>hello"));
  server->Handle("/", "text/html", [] { return "<p>again"; });
  CHECK_THAT(Get(server->port(), "/"), Catch::EndsWith("<p>again"));
}

TEST_CASE("anything but GET is refused, and garbage does no harm") {
  const auto server = MustStart({});
  CHECK_THAT(Exchange(server->port(), "POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"),
             !Catch::Contains(" 200 "));
  CHECK_THAT(Exchange(server->port(), "\x01\x02\x03\r\n\r\n"), !Catch::Contains(" 200 "));
  CHECK_THAT(Get(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200"));
}

TEST_CASE("a port that is taken is named") {
  const auto first = MustStart({});
  HttpServer::Options options;
  options.port = first->port();
  const auto second = HttpServer::Start(options);
  CHECK(second.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(second.status().message()),
             Catch::Contains(first->address()) && Catch::Contains("Address already in use"));

  options.host = "198.51.100.1";  // of a block for documentation: no machine has it
  options.port = 0;
  CHECK_THAT(std::string(HttpServer::Start(options).status().message()), Catch::Contains("198.51.100.1:0"));
}

TEST_CASE("after the end the port is free") {
  auto server = MustStart({});
  HttpServer::Options options;
  options.port = server->port();
  CHECK(!Get(options.port, "/healthz").empty());
  server.reset();
  CHECK(Get(options.port, "/healthz").empty());
  server = MustStart(options);
  CHECK(server->port() == options.port);
}

TEST_CASE("many at once") {
  const auto server = MustStart({});
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) good += Get(server->port(), "/healthz").find(" 200 ") != std::string::npos;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 160);
}

}  // namespace
}  // namespace weir
