#include "common/telemetry/http_server.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/mutex.h"
#include "httplib.h"

namespace weir {
namespace {

constexpr int kThreads = 4;
constexpr std::chrono::seconds kRequestTimeout(5);
constexpr size_t kLargestRequestBody = 1024;
constexpr char kText[] = "text/plain; charset=utf-8";

struct Page {
  std::string content_type;
  std::function<std::string()> body;
};

std::string HostAndPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

}  // namespace

struct HttpServer::State {
  std::string host;
  int port = 0;
  std::function<absl::Status()> health;
  httplib::Server server;
  std::thread thread;

  Mutex mutex;
  std::map<std::string, Page> pages ABSL_GUARDED_BY(mutex);

  void AddPage(const std::string& path, Page page) {
    MutexLock lock(mutex);
    pages[path] = std::move(page);
  }
  void Answer(const std::string& path, httplib::Response& response);
};

void HttpServer::State::Answer(const std::string& path, httplib::Response& response) {
  if (path == "/healthz") {
    const absl::Status status = health ? health() : absl::OkStatus();
    if (!status.ok()) response.status = 503;
    response.set_content(status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"), kText);
    return;
  }
  Page page;
  std::vector<std::string> known = {"/healthz"};
  {
    MutexLock lock(mutex);
    for (const auto& [name, candidate] : pages) {
      known.push_back(name);
      if (name == path) page = candidate;
    }
  }
  if (page.body) {
    response.set_content(page.body(), page.content_type);
  } else {
    response.status = 404;
    response.set_content(absl::StrCat("no such page; there are ", absl::StrJoin(known, ", "), "\n"), kText);
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options) {
  auto state = std::make_unique<State>();
  State* s = state.get();
  s->host = options.host;
  s->health = options.health;
  if (options.metrics != nullptr) {
    s->AddPage("/metrics", {"text/plain; version=0.0.4; charset=utf-8",
                            [metrics = options.metrics] { return metrics->Exposition(); }});
  }
  s->server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  s->server.set_keep_alive_max_count(1);
  s->server.set_read_timeout(kRequestTimeout);
  s->server.set_write_timeout(kRequestTimeout);
  s->server.set_payload_max_length(kLargestRequestBody);
  // The library's default sets SO_REUSEPORT, with which two servers share a port and neither is told.
  s->server.set_socket_options([](int socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  s->server.Get(".*", [s](const httplib::Request& request, httplib::Response& response) {
    s->Answer(request.path, response);
  });
  errno = 0;
  if (options.port == 0) {
    s->port = s->server.bind_to_any_port(options.host);
  } else {
    s->port = s->server.bind_to_port(options.host, options.port) ? options.port : -1;
  }
  if (s->port < 0) {
    const std::string why = errno != 0 ? strerror(errno) : "this machine has no such address";
    return absl::UnavailableError(
        absl::StrCat("cannot serve HTTP on ", HostAndPort(options.host, options.port), ": ", why));
  }
  s->thread = std::thread([s] { s->server.listen_after_bind(); });
  // stop() before this is true would be lost. The socket listens already; this takes microseconds.
  while (!s->server.is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  state_->server.stop();
  state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

std::string HttpServer::address() const { return HostAndPort(state_->host, state_->port); }

void HttpServer::Handle(const std::string& path, const std::string& content_type,
                        std::function<std::string()> body) {
  state_->AddPage(path, {content_type, std::move(body)});
}

}  // namespace weir
