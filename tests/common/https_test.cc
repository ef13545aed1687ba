#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "common/rpc/openssl.h"
#include "common/rpc/tls.h"
#include "common/telemetry/http_server.h"
#include "tests/common/socket_folder.h"
#include "tests/common/telemetry/https_client.h"
#include "tests/common/test_certificates.h"

namespace weir {
namespace {

using Catch::Contains;
using Catch::StartsWith;

const Identity kServer{"weir", Role::kServer, 0}, kReader{"weir", Role::kReader, 0};

// Serves "/page" to who is proven, with TLS and without.
class Server {
 public:
  explicit Server(std::shared_ptr<const Tls> tls) {
    HttpServer::Options options;
    options.accept_tls = [tls](int socket) { return AcceptHttps(socket, *tls); };
    options.authorize = [](absl::string_view, bool proven) { return proven; };
    options.authorize_hint = "prove it";
    server_ = HttpServer::Start(options).value();
    server_->Handle("/page", "text/plain", [] { return std::string(kPageBytes, 'x'); });
  }
  int port() const { return server_->port(); }

  // More than a socket takes at once.
  static constexpr size_t kPageBytes = 8 << 20;

 private:
  std::unique_ptr<HttpServer> server_;
};

TEST_CASE("A client with a certificate of the job sees all pages, whole; others see health") {
  const SocketFolder folder;
  const TestCertificates ca(folder.path(), "ca"), other_ca(folder.path(), "other");
  const Server server(ca.IssueTls(kServer));
  const auto reader = ca.IssueTls(kReader);
  const std::string page = HttpsGet(server.port(), "/page", reader.get());
  CHECK_THAT(page.substr(0, 200), StartsWith("HTTP/1.1 200 OK"));
  CHECK(page.size() > Server::kPageBytes);
  CHECK_THAT(HttpsGet(server.port(), "/healthz", reader.get()), StartsWith("HTTP/1.1 200 OK"));

  const auto of_another_job = ca.IssueTls({"other", Role::kReader, 0});
  for (const Tls* tls : {static_cast<const Tls*>(nullptr), of_another_job.get()}) {
    CHECK_THAT(HttpsGet(server.port(), "/page", tls), StartsWith("HTTP/1.1 401") && Contains("prove it"));
    CHECK_THAT(HttpsGet(server.port(), "/healthz", tls), StartsWith("HTTP/1.1 200 OK"));
  }
  // In the clear, too.
  CHECK(HttpGetPage(server.port(), "/page").status == 401);
  CHECK(HttpGetPage(server.port(), "/healthz").status == 200);
}

TEST_CASE("Certificates of other CAs, and what is older than TLS 1.3, end the connection") {
  const SocketFolder folder;
  const TestCertificates ca(folder.path(), "ca"), other_ca(folder.path(), "other");
  const Server server(ca.IssueTls(kServer));
  const auto reader = ca.IssueTls(kReader);
  // The client of the other CA accepts the server's.
  TlsFiles files = other_ca.Issue(kReader, "reader");
  const auto stranger = Tls::ReadIfGiven(files).value();
  const auto replaced = ca.ca_pem() + other_ca.ca_pem();
  std::ofstream(files.ca) << replaced;
  CHECK(HttpsGet(server.port(), "/healthz", stranger.get()).empty());
  CHECK(HttpsExchange(server.port(), "GET /healthz HTTP/1.1\r\n\r\n", reader.get(), /*old=*/true).empty());
  CHECK_THAT(HttpsGet(server.port(), "/healthz", reader.get()), StartsWith("HTTP/1.1 200 OK"));
}

TEST_CASE("A new connection has the certificate that is in the file then") {
  const SocketFolder folder;
  const TestCertificates ca(folder.path(), "ca");
  const TlsFiles files = ca.Issue(kServer, "server");
  const Server server(Tls::ReadIfGiven(files).value());
  const auto reader = ca.IssueTls(kReader);
  const std::string request = "GET /healthz HTTP/1.1\r\n\r\n";
  Identity found;
  CHECK_FALSE(HttpsExchange(server.port(), request, reader.get(), false, &found).empty());
  CHECK(found.index == 0);
  ca.Issue({"weir", Role::kServer, 1}, "server");
  CHECK_FALSE(HttpsExchange(server.port(), request, reader.get(), false, &found).empty());
  CHECK(found.index == 1);
}

TEST_CASE("Half a handshake and nonsense in TLS keep nobody waiting") {
  const SocketFolder folder;
  const TestCertificates ca(folder.path(), "ca");
  const Server server(ca.IssueTls(kServer));
  const auto reader = ca.IssueTls(kReader);
  const UniqueFd half = HttpConnect(server.port()), nonsense = HttpConnect(server.port());
  REQUIRE(HttpSend(half, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)));
  REQUIRE(HttpSend(nonsense, "\x16" + std::string(100, 'x')));
  CHECK_THAT(HttpsGet(server.port(), "/healthz", reader.get()), StartsWith("HTTP/1.1 200 OK"));
  // The server has ended it.
  CHECK_THAT(HttpReceive(nonsense), !Contains("HTTP"));
}

TEST_CASE("A peer that is gone ends a write, and not the process") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const UniqueFd own(ends[0]);
  close(ends[1]);
  const BioPtr bio = NewSocketBio(own.get());
  CHECK(BIO_write(bio.get(), "x", 1) == -1);
  CHECK(BIO_should_retry(bio.get()) == 0);
}

}  // namespace
}  // namespace weir
