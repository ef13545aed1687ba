#include "common/telemetry/http_server.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/net/tcp.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Limits of what clients may take. Their memory here is at most kMostConnections times (kLargestHead + a
// page).
constexpr size_t kMostConnections = 64;
// The largest request: its first line and its headers, all together.
constexpr size_t kLargestHead = 8192;
// The most that a client may send after that.
constexpr size_t kMostIgnored = 65536;
// How long to wait when the process has no descriptor for another connection.
constexpr std::chrono::milliseconds kAcceptPause(100);
constexpr char kText[] = "text/plain; charset=utf-8";

struct Page {
  std::string content_type;
  std::function<std::string()> body;
};

std::string Response(absl::string_view status, absl::string_view content_type, absl::string_view body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", content_type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

class PlainStream final : public HttpStream {
 public:
  explicit PlainStream(int socket) : socket_(socket) {}

  ssize_t Receive(char* bytes, size_t size) override { return recv(socket_, bytes, size, 0); }
  ssize_t Send(const char* bytes, size_t size) override { return send(socket_, bytes, size, MSG_NOSIGNAL); }
  void EndOutput() override { shutdown(socket_, SHUT_WR); }
  short awaited() const override { return 0; }
  bool proven() const override { return false; }

 private:
  const int socket_;
};

// A client: it sends, then gets an answer. What it sends after that is read and ignored until the client
// closes, because the kernel takes an answer back if data of its reader is left unread.
class Connection {
 public:
  using Respond = std::function<std::string(absl::string_view head, bool proven)>;

  Connection(UniqueFd fd, SteadyClock::time_point deadline)
      : deadline(deadline), fd_(std::move(fd)), stream_(std::make_unique<PlainStream>(fd_.get())) {}

  const SteadyClock::time_point deadline;
  int fd() const { return fd_.get(); }
  UniqueFd Release() { return std::move(fd_); }
  // Both to be asked when the first bytes are there. No method of HTTP/1 begins so.
  bool BeginsHttp2() const { return IsNew() && Begins("PRI "); }
  bool BeginsTls() const { return IsNew() && Begins("\x16"); }  // a handshake record (RFC 8446, 5.1)
  void SetStream(std::unique_ptr<HttpStream> stream) { stream_ = std::move(stream); }
  short awaited() const {
    if (stream_->awaited() != 0) return stream_->awaited();
    return sent_ < response_.size() ? POLLOUT : POLLIN;
  }

  // Does what can be done without waiting. False: there is nothing more to do.
  bool GoOn(const Respond& respond) {
    begun_ = true;
    // A stream may have bytes for which its socket is not ready any more.
    while (response_.empty()) {
      const Progress progress = Receive(respond);
      if (progress != Progress::kMore) return progress == Progress::kWaits;
    }
    if (sent_ < response_.size()) return Send();
    while (ignored_ <= kMostIgnored) {
      char ignored[4096];
      const ssize_t n = stream_->Receive(ignored, sizeof ignored);
      if (n <= 0) return n < 0 && IsPassing(errno);
      ignored_ += static_cast<size_t>(n);
    }
    return false;
  }

  // Called before the server closes the connection: says why, unless an answer has begun.
  void Refuse(absl::string_view status, absl::string_view why) {
    if (!response_.empty()) return;
    response_ = Response(status, kText, why);
    Send();
  }

 private:
  enum class Progress { kMore, kWaits, kOver };

  static bool IsPassing(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }
  bool IsNew() const { return !begun_ && response_.empty(); }
  bool Begins(absl::string_view with) const {
    char first[4];
    return recv(fd(), first, with.size(), MSG_PEEK) == static_cast<ssize_t>(with.size()) &&
           absl::string_view(first, with.size()) == with;
  }

  Progress Receive(const Respond& respond) {
    char buffer[kLargestHead];
    const ssize_t n = stream_->Receive(buffer, sizeof buffer - head_.size());
    if (n < 0) return IsPassing(errno) ? Progress::kWaits : Progress::kOver;
    if (n == 0) return Progress::kOver;
    head_.append(buffer, static_cast<size_t>(n));
    const size_t end = head_.find("\r\n\r\n");
    if (end != std::string::npos) {
      response_ = respond(absl::string_view(head_).substr(0, end), stream_->proven());
    } else if (head_.size() == kLargestHead) {
      Refuse("431 Request Header Fields Too Large",
             absl::StrCat("a request may have ", kLargestHead, " bytes\n"));
    }
    return Progress::kMore;
  }

  bool Send() {
    const ssize_t n = stream_->Send(response_.data() + sent_, response_.size() - sent_);
    if (n < 0) return IsPassing(errno);
    sent_ += static_cast<size_t>(n);
    if (sent_ == response_.size()) stream_->EndOutput();
    return true;
  }

  UniqueFd fd_;
  std::unique_ptr<HttpStream> stream_;
  bool begun_ = false;
  std::string head_;
  std::string response_;
  size_t sent_ = 0;
  size_t ignored_ = 0;
};

}  // namespace

struct HttpServer::State {
  Options options;
  UniqueFd listener;
  UniqueFd stop;  // an eventfd
  int port = 0;
  std::thread thread;

  Mutex mutex;
  std::map<std::string, Page> pages ABSL_GUARDED_BY(mutex);

  void AddPage(const std::string& path, Page page) {
    MutexLock lock(mutex);
    pages[path] = std::move(page);
  }
  void Run();
  std::string Respond(absl::string_view head, bool proven);
  std::string Get(absl::string_view path, absl::string_view authorization, bool proven);
};

void HttpServer::State::Run() {
  std::list<Connection> connections;  // in the order of their deadlines
  const auto respond = [this](absl::string_view head, bool proven) { return Respond(head, proven); };
  std::vector<pollfd> polled;
  bool pause = false;
  while (true) {
    const auto now = SteadyClock::now();
    for (; !connections.empty() && connections.front().deadline <= now; connections.pop_front()) {
      connections.front().Refuse("408 Request Timeout", "the request did not come in time\n");
    }
    auto until = pause ? now + kAcceptPause : SteadyClock::time_point::max();
    if (!connections.empty()) until = std::min(until, connections.front().deadline);
    polled = {{stop.get(), POLLIN, 0}, {pause ? -1 : listener.get(), POLLIN, 0}};
    for (const Connection& c : connections) polled.push_back({c.fd(), c.awaited(), 0});
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    poll(polled.data(), polled.size(), until == SteadyClock::time_point::max() ? -1 : static_cast<int>(wait));
    if (polled[0].revents != 0) return;
    auto entry = polled.begin() + 2;
    for (auto c = connections.begin(); c != connections.end(); ++entry) {
      if (options.on_http2 && entry->revents != 0 && c->BeginsHttp2()) {
        options.on_http2(c->Release());
        c = connections.erase(c);
        continue;
      }
      if (options.accept_tls && entry->revents != 0 && c->BeginsTls()) {
        std::unique_ptr<HttpStream> stream = options.accept_tls(c->fd());
        if (stream == nullptr) {
          c = connections.erase(c);
          continue;
        }
        c->SetStream(std::move(stream));
      }
      c = entry->revents == 0 || c->GoOn(respond) ? std::next(c) : connections.erase(c);
    }
    pause = false;
    if (polled[1].revents == 0) continue;
    absl::StatusOr<UniqueFd> fd = AcceptClient(listener.get());
    pause = absl::IsResourceExhausted(fd.status());
    if (!fd.ok()) continue;
    // The oldest connection goes: a client that is served within milliseconds is hardly ever the oldest.
    if (connections.size() == kMostConnections) {
      connections.front().Refuse("503 Service Unavailable", "too many connections\n");
      connections.pop_front();
    }
    // The deadline counts from now, not from when the wait began.
    connections.emplace_back(*std::move(fd), SteadyClock::now() + options.time_limit);
  }
}

// The value of the header "Authorization" in the head of a request; "": there is none.
absl::string_view AuthorizationIn(absl::string_view head) {
  for (absl::string_view line : absl::StrSplit(head, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> header =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::EqualsIgnoreCase(header.first, "authorization"))
      return absl::StripAsciiWhitespace(header.second);
  }
  return "";
}

// No other header changes the answer: there are no ranges, no bodies and no second request.
std::string HttpServer::State::Respond(absl::string_view head, bool proven) {
  const std::vector<absl::string_view> words = absl::StrSplit(head.substr(0, head.find("\r\n")), ' ');
  if (words.size() != 3 || !absl::StartsWith(words[1], "/") || !absl::StartsWith(words[2], "HTTP/1.")) {
    return Response("400 Bad Request", kText, "the first line is to be: GET /PATH HTTP/1.1\n");
  }
  if (words[0] != "GET" && words[0] != "HEAD") {
    return Response("405 Method Not Allowed\r\nAllow: GET, HEAD", kText, "only GET and HEAD\n");
  }
  std::string response = Get(words[1].substr(0, words[1].find('?')), AuthorizationIn(head), proven);
  if (words[0] == "HEAD") response.resize(response.find("\r\n\r\n") + 4);
  return response;
}

std::string HttpServer::State::Get(absl::string_view path, absl::string_view authorization, bool proven) {
  if (path == "/healthz" || path == "/readyz") {
    const std::function<absl::Status()>& probe = path == "/healthz" ? options.health : options.ready;
    const absl::Status status = probe ? probe() : absl::OkStatus();
    if (status.ok()) return Response("200 OK", kText, "ok\n");
    return Response("503 Service Unavailable", kText, absl::StrCat(status.message(), "\n"));
  }
  if (options.authorize && !options.authorize(authorization, proven)) {
    return Response("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"weir\"", kText,
                    absl::StrCat(options.authorize_hint, "\n"));
  }
  Page page;
  std::vector<std::string> known = {"/healthz", "/readyz"};
  {
    MutexLock lock(mutex);
    for (const auto& [name, candidate] : pages) {
      known.push_back(name);
      if (name == path) page = candidate;
    }
  }
  if (page.body) return Response("200 OK", page.content_type, page.body());
  return Response("404 Not Found", kText,
                  absl::StrCat("no such page; there are ", absl::StrJoin(known, ", "), "\n"));
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options) {
  absl::StatusOr<UniqueFd> listener = ListenTcp(options.host, options.port);
  if (!listener.ok()) {
    return absl::Status(
        listener.status().code(),
        absl::StrCat("cannot serve HTTP on ",
                     Address{options.host, static_cast<uint16_t>(options.port), ""}.ToString(), ": ",
                     listener.status().message()));
  }
  return StartOn(*std::move(listener), options);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::StartOn(UniqueFd listener, const Options& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  if (options.metrics != nullptr) {
    state->AddPage("/metrics", {"text/plain; version=0.0.4; charset=utf-8",
                                [metrics = options.metrics, refresh = options.refresh_metrics] {
                                  if (refresh) refresh();
                                  return metrics->Exposition();
                                }});
  }
  state->listener = std::move(listener);
  state->port = PortOf(state->listener);
  state->stop = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!state->stop.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  WEIR_ASSIGN_OR_RETURN(state->thread, MakeThread("serve HTTP", [s = state.get()] { s->Run(); }));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  eventfd_write(state_->stop.get(), 1);
  state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

std::string HttpServer::address() const {
  return Address{state_->options.host, static_cast<uint16_t>(state_->port), ""}.ToString();
}

void HttpServer::Handle(const std::string& path, const std::string& content_type,
                        std::function<std::string()> body) {
  state_->AddPage(path, {content_type, std::move(body)});
}

}  // namespace weir
