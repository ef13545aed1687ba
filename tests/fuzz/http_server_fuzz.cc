// What a client sends to the HTTP server, over a Unix socket, which takes no TCP port from the machine: the
// input's bytes, in two pieces. The input's first byte says where the second begins. The page needs a token.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/net/local_socket.h"
#include "common/rpc/job_token.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/http_server.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

constexpr char kPage[] = "the page";
constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

JobToken Token() {
  const UniqueFd file(memfd_create("token", MFD_CLOEXEC));
  FuzzCheck(fchmod(file.get(), 0600) == 0 && write(file.get(), kToken, strlen(kToken)) > 0,
            "this machine has room for a file");
  return JobToken::Read(absl::StrCat("/proc/self/fd/", file.get())).value();
}

std::string SocketName() { return absl::StrCat("weir-http-fuzz-", getpid()); }

std::unique_ptr<HttpServer> Start() {
  HttpServer::Options options;
  options.authorize = [token = Token()](absl::string_view authorization, bool /*proven*/) {
    return token.AuthorizesHttp(authorization);
  };
  std::unique_ptr<HttpServer> server =
      HttpServer::StartOn(ListenLocal(SocketName(), SOCK_STREAM).value(), options).value();
  server->Handle("/page", "text/plain", [] { return std::string(kPage); });
  return server;
}

UniqueFd Connect() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string name = SocketName();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  FuzzCheck(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "the server listens");
  const timeval limit{20, 0};  // no answer takes so long
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return socket;
}

// Whether the token is somewhere in the input, as it is or within a word in base64, which may have blanks in
// it. Which characters stand for the token there depends on the length of what precedes it, modulo 3.
bool HoldsToken(absl::string_view input) {
  if (absl::StrContains(input, kToken)) return true;
  const std::string dense =
      absl::StrReplaceAll(input, {{" ", ""}, {"\t", ""}, {"\r", ""}, {"\n", ""}, {"\v", ""}, {"\f", ""}});
  for (size_t before = 0; before < 3; ++before) {
    const std::string text = absl::Base64Escape(std::string(before, '-') + kToken);
    const size_t first = (before * 8 + 5) / 6, end = (before + strlen(kToken)) * 8 / 6;
    if (absl::StrContains(dense, text.substr(first, end - first))) return true;
  }
  return false;
}

}  // namespace

// Takes it: the server answers with the page.
bool ReadInput(absl::string_view input) {
  [[maybe_unused]] static const std::unique_ptr<HttpServer> server = Start();
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
  if (!absl::StartsWith(answer, "HTTP/1.1 200") || !absl::EndsWith(answer, kPage)) return false;
  FuzzCheck(HoldsToken(input), "nobody sees the page without the token");
  return true;
}

std::vector<std::string> Seeds() {
  const std::string bearer = absl::StrCat("Authorization: Bearer ", kToken, "\r\n"),
                    basic = absl::StrCat("Authorization: Basic ",
                                         absl::Base64Escape(absl::StrCat("user:", kToken)), "\r\n");
  return {std::string(1, '\0') + "GET /page HTTP/1.1\r\nHost: localhost\r\n" + bearer + "\r\n",
          "\x30GET /page?at=1 HTTP/1.0\r\n" + basic + "\r\nbody that nobody reads"};
}

std::vector<std::string> Words() {
  return {
      "GET ",     "HEAD ",          "POST ",    " HTTP/1.1", " HTTP/2",
      "\r\n\r\n", "\n\n",           "/metrics", "/healthz",  "/readyz",
      "/page",    "authorization:", "Bearer ",  "Basic ",    absl::Base64Escape(absl::StrCat(":", kToken)),
      kToken};
}

}  // namespace weir
