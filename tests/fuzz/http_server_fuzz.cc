// What a client sends to the HTTP server, over a connection: the input's bytes, in two pieces. The input's
// first byte says where the second begins.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/http_server.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

constexpr char kPage[] = "the page";

HttpServer& Server() {
  static HttpServer* const server = [] {
    HttpServer* const started = HttpServer::Start({}).value().release();
    started->Handle("/page", "text/plain", [] { return std::string(kPage); });
    return started;
  }();
  return *server;
}

UniqueFd Connect() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(Server().port()));
  FuzzCheck(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
            "the server listens");
  // Closing resets the connection, so that thousands of closed ones use no ports up. No answer takes so long.
  const linger reset{1, 0};
  const timeval limit{20, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return socket;
}

}  // namespace

// Takes it: the server answers with the page.
bool ReadInput(absl::string_view input) {
  if (input.empty()) return false;
  const size_t cut = std::min<size_t>(static_cast<unsigned char>(input[0]), input.size() - 1);
  input.remove_prefix(1);
  const UniqueFd socket = Connect();
  for (const absl::string_view piece : {input.substr(0, cut), input.substr(cut)}) {
    // The server may have ended the connection.
    if (send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
  }
  shutdown(socket.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  ssize_t got;
  while ((got = recv(socket.get(), buffer, sizeof buffer, 0)) > 0)
    answer.append(buffer, static_cast<size_t>(got));
  FuzzCheck(got == 0 || errno != EAGAIN, "the server answers or ends the connection");
  if (answer.empty()) return false;
  FuzzCheck(absl::StartsWith(answer, "HTTP/1.1 "), "an answer has a status");
  const size_t head = answer.find("\r\n\r\n");
  // A connection that is reset takes the end of an answer with it.
  FuzzCheck(head != std::string::npos || got < 0, "an answer has a whole head");
  return absl::StartsWith(answer, "HTTP/1.1 200") && absl::EndsWith(answer, kPage);
}

std::vector<std::string> Seeds() {
  return {std::string(1, '\0') + "GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "\x12GET /page?at=1 HTTP/1.0\r\n\r\nbody that nobody reads"};
}

std::vector<std::string> Words() {
  return {"GET ", "HEAD ",    "POST ",    " HTTP/1.1", " HTTP/2", "\r\n\r\n",
          "\n\n", "/metrics", "/healthz", "/readyz",   "/page"};
}

}  // namespace weir
