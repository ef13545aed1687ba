#include "tests/bench/http_sink.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/net/tcp.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

constexpr size_t kBuffer = 256 << 10;

// "" if there is none.
absl::string_view Header(absl::string_view head, absl::string_view name) {
  const std::string line = absl::StrCat("\r\n", name, ": ");
  const size_t at = head.find(line);
  if (at == absl::string_view::npos) return "";
  const absl::string_view value = head.substr(at + line.size());
  return value.substr(0, value.find("\r\n"));
}

// Returns the part of S3's answer that a client which puts files reads: status line and body.
std::pair<std::string, std::string> Answer(absl::string_view head, const char* folder) {
  const absl::string_view method = head.substr(0, head.find(' '));
  const absl::string_view target = head.substr(0, head.find('\r'));
  if (method == "HEAD") return {"404 Not Found", ""};
  if (method == "POST" && absl::StrContains(target, "?uploads")) {
    return {"200 OK",
            "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"};
  }
  if (method == "POST") return {"200 OK", "<CompleteMultipartUploadResult/>"};
  if (method == "GET") {
    const size_t at = target.find("prefix=");
    const absl::string_view rest = at == absl::string_view::npos ? "" : target.substr(at + 7);
    return {"200 OK", absl::StrCat("<ListBucketResult><CommonPrefixes><Prefix>",
                                   rest.substr(0, rest.find_first_of("& ")), folder,
                                   "/</Prefix></CommonPrefixes></ListBucketResult>")};
  }
  return {"200 OK", ""};
}

bool SendAll(int fd, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t sent = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void Serve(UniqueFd connection, const char* folder) {
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::vector<char> buffer(kBuffer);
  std::string input;
  while (true) {
    size_t end;
    while ((end = input.find("\r\n\r\n")) == std::string::npos) {
      const ssize_t got = recv(connection.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return;
      input.append(buffer.data(), static_cast<size_t>(got));
    }
    const std::string head = input.substr(0, end + 2);
    uint64_t body = 0;
    if (!absl::SimpleAtoi(Header(head, "Content-Length"), &body)) body = 0;
    const uint64_t there = std::min<uint64_t>(body, input.size() - end - 4);
    input.erase(0, end + 4 + there);
    body -= there;
    if (!Header(head, "Expect").empty() && !SendAll(connection.get(), "HTTP/1.1 100 Continue\r\n\r\n"))
      return;
    while (body > 0) {
      const ssize_t got = recv(connection.get(), buffer.data(), std::min<uint64_t>(buffer.size(), body), 0);
      if (got <= 0) return;
      body -= static_cast<uint64_t>(got);
    }
    const auto [status, answer] = Answer(head, folder);
    if (!SendAll(connection.get(), absl::StrCat("HTTP/1.1 ", status, "\r\nETag: \"1\"\r\nContent-Length: ",
                                                answer.size(), "\r\n\r\n", answer))) {
      return;
    }
  }
}

[[noreturn]] void Run(const UniqueFd& listener, const char* folder) {
  while (true) {
    pollfd ready{listener.get(), POLLIN, 0};
    poll(&ready, 1, -1);
    UniqueFd connection(accept(listener.get(), nullptr, nullptr));
    if (!connection.valid()) continue;
    std::thread([folder, connection = std::move(connection)]() mutable {
      Serve(std::move(connection), folder);
    }).detach();
  }
}

}  // namespace

absl::StatusOr<HttpSink> HttpSink::Start(const char* folder) {
  WEIR_ASSIGN_OR_RETURN(const UniqueFd listener, ListenTcp("127.0.0.1", 0));
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const pid_t process = fork();
  if (process < 0) return absl::UnavailableError("cannot start a process");
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Run(listener, folder);
  }
  return HttpSink(process, ntohs(address.sin_port));
}

HttpSink::~HttpSink() {
  if (process_ == 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

}  // namespace weir
