#include "common/telemetry/http_server.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/common/telemetry/http_client.h"

namespace weir {
namespace {

std::unique_ptr<HttpServer> MustStart(const HttpServer::Options& options) {
  auto server = HttpServer::Start(options);
  REQUIRE(server.ok());
  return std::move(*server);
}

TEST_CASE("metrics, health and pages") {
  MetricRegistry registry;
  registry.AddCallbackCounter("weir_pushes_total", "Pushes.", {}, [] { return 3; });
  std::atomic<bool> healthy{true}, ready{false};
  HttpServer::Options options;
  options.metrics = &registry;
  options.health = [&] {
    return healthy ? absl::OkStatus() : absl::UnavailableError("no coordinator at b:2222");
  };
  options.ready = [&] { return ready ? absl::OkStatus() : absl::UnavailableError("loads its weights"); };
  const auto server = MustStart(options);
  CHECK(server->address() == "127.0.0.1:" + std::to_string(server->port()));

  const std::string metrics = HttpGet(server->port(), "/metrics");
  CHECK_THAT(metrics, Catch::StartsWith("HTTP/1.1 200") && Catch::EndsWith("\nweir_pushes_total 3\n"));
  CHECK_THAT(metrics, Catch::Contains("Content-Type: text/plain; version=0.0.4"));

  CHECK_THAT(HttpGet(server->port(), "/healthz"),
             Catch::StartsWith("HTTP/1.1 200") && Catch::EndsWith("\r\nok\n"));
  CHECK_THAT(HttpGet(server->port(), "/readyz"),
             Catch::StartsWith("HTTP/1.1 503") && Catch::EndsWith("loads its weights\n"));
  ready = true;
  CHECK_THAT(HttpGet(server->port(), "/readyz"),
             Catch::StartsWith("HTTP/1.1 200") && Catch::EndsWith("\r\nok\n"));
  healthy = false;
  CHECK_THAT(HttpGet(server->port(), "/healthz"),
             Catch::StartsWith("HTTP/1.1 503") && Catch::EndsWith("no coordinator at b:2222\n"));

  CHECK_THAT(HttpGet(server->port(), "/"),
             Catch::StartsWith("HTTP/1.1 404") && Catch::Contains("/healthz, /readyz, /metrics"));
  server->Handle("/", "text/html", [] { return "<p>hello"; });
  CHECK_THAT(HttpGet(server->port(), "/"),
             Catch::Contains("Content-Type: text/html") && Catch::EndsWith("<p>hello"));
  server->Handle("/", "text/html", [] { return "<p>again"; });
  CHECK_THAT(HttpGet(server->port(), "/"), Catch::EndsWith("<p>again"));
}

TEST_CASE("who is not authorized sees health alone") {
  MetricRegistry registry;
  HttpServer::Options options;
  options.metrics = &registry;
  options.authorize = [](absl::string_view authorization, bool) { return authorization == "Bearer a"; };
  options.authorize_hint = "say who you are";
  const auto server = MustStart(options);
  const auto with = [&](const std::string& page, const std::string& headers) {
    return HttpExchange(server->port(), "GET " + page + " HTTP/1.1\r\n" + headers + "\r\n");
  };
  CHECK_THAT(with("/healthz", ""), Catch::StartsWith("HTTP/1.1 200"));
  CHECK_THAT(with("/metrics", "Authorization: Bearer a\r\n"), Catch::StartsWith("HTTP/1.1 200"));
  CHECK_THAT(with("/metrics", "Host: x\r\nAUTHORIZATION:Bearer a \r\n"), Catch::StartsWith("HTTP/1.1 200"));
  for (const char* headers :
       {"", "Authorization: Bearer b\r\n", "Authorization\r\n", "X: Authorization: Bearer a\r\n"}) {
    INFO(headers);
    CHECK_THAT(with("/metrics", headers),
               Catch::StartsWith("HTTP/1.1 401 ") && Catch::EndsWith("say who you are\n"));
  }
  // Nor what pages there are.
  CHECK_THAT(with("/other", ""), Catch::StartsWith("HTTP/1.1 401 "));
  CHECK_THAT(with("/other", "Authorization: Bearer a\r\n"), Catch::StartsWith("HTTP/1.1 404 "));
}

TEST_CASE("a connection of HTTP/2 is handed over with all its bytes") {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  CHECK_THAT(HttpExchange(MustStart({})->port(), preface), Catch::StartsWith("HTTP/1.1 400 "));
  std::promise<UniqueFd> taken;
  HttpServer::Options options;
  options.on_http2 = [&](UniqueFd connection) { taken.set_value(std::move(connection)); };
  const auto server = MustStart(options);
  CHECK_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200"));
  const UniqueFd client = HttpConnect(server->port());
  REQUIRE(HttpSend(client, preface));
  const UniqueFd connection = taken.get_future().get();
  std::string got(preface.size(), '\0');
  CHECK(recv(connection.get(), got.data(), got.size(), MSG_WAITALL) == static_cast<ssize_t>(got.size()));
  CHECK(got == preface);
}

TEST_CASE("anything but GET and HEAD is refused, and garbage does no harm") {
  const auto server = MustStart({});
  CHECK_THAT(HttpExchange(server->port(), "POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"),
             Catch::StartsWith("HTTP/1.1 405 ") && Catch::Contains("\r\nAllow: GET, HEAD\r\n"));
  for (const char* line :
       {"\x01\x02\x03", "GET", "GET  HTTP/1.1", "GET /healthz", "GET /healthz SPDY/3", ""}) {
    CAPTURE(line);
    CHECK_THAT(HttpExchange(server->port(), std::string(line) + "\r\n\r\n"),
               Catch::StartsWith("HTTP/1.1 400 "));
  }
  CHECK_THAT(HttpExchange(server->port(), "HEAD /healthz?now HTTP/1.0\r\n\r\n"),
             Catch::StartsWith("HTTP/1.1 200 ") && Catch::Contains("\r\nContent-Length: 3\r\n") &&
                 Catch::EndsWith("\r\n\r\n"));
  CHECK_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200"));
}

TEST_CASE("a port that is taken is named") {
  const auto first = MustStart({});
  HttpServer::Options options;
  options.port = first->port();
  const auto second = HttpServer::Start(options);
  CHECK(second.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(second.status().message()),
             Catch::Contains(first->address()) && Catch::Contains("another process listens there"));

  options.host = "198.51.100.1";  // in a block for documentation: no machine has this address
  options.port = 0;
  CHECK_THAT(std::string(HttpServer::Start(options).status().message()), Catch::Contains("198.51.100.1:0"));
}

TEST_CASE("after the end the port is free") {
  auto server = MustStart({});
  HttpServer::Options options;
  options.port = server->port();
  CHECK(!HttpGet(options.port, "/healthz").empty());
  server.reset();
  CHECK(HttpGet(options.port, "/healthz").empty());
  server = MustStart(options);
  CHECK(server->port() == options.port);
}

TEST_CASE("many at once") {
  const auto server = MustStart({});
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i)
        good += HttpGet(server->port(), "/healthz").find(" 200 ") != std::string::npos;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 160);
}

// This process's resident memory.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4096;
}

TEST_CASE("a request without end is cut off and costs no memory") {
  const auto server = MustStart({});
  constexpr size_t kPiece = 65536, kMost = size_t{256} << 20;
  for (const char* start : {"", "GET /", "GET /healthz HTTP/1.1\r\nX: ", "GET /healthz HTTP/1.1\r\n"}) {
    for (const std::string& endless : {std::string("x"), std::string("X: y\r\n")}) {
      CAPTURE(start, endless);
      std::string piece;
      while (piece.size() < kPiece) piece += endless;
      const int64_t before = ResidentBytes();
      const UniqueFd fd = HttpConnect(server->port());
      REQUIRE(HttpSend(fd, start));
      size_t sent = 0;
      while (sent < kMost && HttpSend(fd, piece)) sent += piece.size();
      // The kernel's memory for an unread socket does not count.
      CHECK(sent < size_t{32} << 20);
      CHECK_THAT(HttpReceive(fd), Catch::StartsWith("HTTP/1.1 431 "));
      CHECK(ResidentBytes() - before < int64_t{8} << 20);
    }
  }
  CHECK_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a request of 8 KiB is the largest") {
  const auto server = MustStart({});
  const std::string start = "GET /healthz HTTP/1.1\r\nX: ", end = "\r\n\r\n";
  const std::string fits = start + std::string(8192 - start.size() - end.size(), 'x') + end;
  CHECK_THAT(HttpExchange(server->port(), fits), Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(HttpExchange(server->port(), "x" + fits), Catch::StartsWith("HTTP/1.1 431 "));
}

TEST_CASE("ranges are ignored: a page is sent once, whatever is asked for") {
  const auto server = MustStart({});
  server->Handle("/page", "text/plain", [] { return std::string(4000, 'p'); });
  std::string ranges = "0-";
  while (ranges.size() < 7000) ranges += ",0-";
  const std::string page =
      HttpExchange(server->port(), "GET /page HTTP/1.1\r\nRange: bytes=" + ranges + "\r\n\r\n");
  CHECK_THAT(page, Catch::StartsWith("HTTP/1.1 200 ") && Catch::Contains("Content-Length: 4000\r\n"));
  CHECK(page.size() < 4400);
}

TEST_CASE("who sends or reads slowly keeps nobody waiting, and is cut off") {
  HttpServer::Options options;
  const bool short_limit = GENERATE(false, true);
  if (short_limit) options.time_limit = std::chrono::milliseconds(300);
  const auto server = MustStart(options);
  const size_t large = size_t{16} << 20;
  server->Handle("/large", "text/plain", [=] { return std::string(large, 'x'); });
  const UniqueFd slow_reader = HttpConnect(server->port());
  REQUIRE(HttpSend(slow_reader, "GET /large HTTP/1.1\r\n\r\n"));
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(HttpConnect(server->port()));
    REQUIRE(HttpSend(slow.back(), i % 2 == 0 ? "G" : ""));
  }
  REQUIRE_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200 "));
  if (!short_limit) {
    // The good request is answered while the slow ones go on.
    char byte;
    for (const UniqueFd& fd : slow) CHECK(recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0);
    return;
  }
  // A byte now and then does not help.
  const auto end = std::chrono::steady_clock::now() + 2 * options.time_limit;
  while (std::chrono::steady_clock::now() < end) {
    for (const UniqueFd& fd : slow) HttpSend(fd, "x");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const UniqueFd& fd : slow) CHECK_THAT(HttpReceive(fd), Catch::StartsWith("HTTP/1.1 408 "));
  CHECK(HttpReceive(slow_reader).size() < large);
  const UniqueFd silent = HttpConnect(server->port());
  CHECK_THAT(HttpReceive(silent), Catch::StartsWith("HTTP/1.1 408 "));
}

TEST_CASE("the first request after a quiet time is answered") {
  HttpServer::Options options;
  options.time_limit = std::chrono::milliseconds(200);
  const auto server = MustStart(options);
  // Scrapes at intervals find the server asleep since the one before.
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(3 * options.time_limit / 2);
    CHECK_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200"));
  }
}

TEST_CASE("connections beyond the limit take the place of the oldest ones") {
  const auto server = MustStart({});
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(HttpConnect(server->port()));
    REQUIRE(idle.back().valid());
  }
  CHECK_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200 "));
  for (int i = 0; i < 200; ++i) REQUIRE_THAT(HttpReceive(idle[i]), Catch::StartsWith("HTTP/1.1 503 "));
  REQUIRE(HttpSend(idle.back(), "GET /healthz HTTP/1.1\r\n\r\n"));
  CHECK_THAT(HttpReceive(idle.back()), Catch::StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("the server ends while clients hold on") {
  auto server = MustStart({});
  const UniqueFd idle = HttpConnect(server->port());
  REQUIRE(HttpSend(idle, "GET /heal"));
  CHECK_THAT(HttpGet(server->port(), "/healthz"), Catch::StartsWith("HTTP/1.1 200 "));
  const auto start = std::chrono::steady_clock::now();
  server.reset();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(HttpReceive(idle).empty());
}

}  // namespace
}  // namespace weir
