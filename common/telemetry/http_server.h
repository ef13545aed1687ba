#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/metrics.h"

namespace weir {

// How the bytes of an HTTP connection travel over its non-blocking socket: as they are, or encrypted
// (common/rpc/tls.h).
class HttpStream {
 public:
  virtual ~HttpStream() = default;

  // As recv() and send(): -1 sets errno, to EAGAIN if the socket is not ready.
  virtual ssize_t Receive(char* bytes, size_t size) = 0;
  virtual ssize_t Send(const char* bytes, size_t size) = 0;
  // Nothing will be sent any more; the client may continue to send.
  virtual void EndOutput() = 0;
  // After EAGAIN: what to poll the socket for; 0: POLLIN to receive, POLLOUT to send.
  virtual short awaited() const = 0;
  // Whether the client has proven that it is of this server's job.
  virtual bool proven() const = 0;
};

// The small HTTP server of a role: /metrics, /healthz, /readyz, and pages that its owner adds. GET and HEAD
// only, one request per connection. Thread-safe.
//
// A client may be hostile: the head of a request, the connections and the time of each have limits, a body is
// not read, ranges are ignored. If there are too many connections, the oldest goes. So a client costs a
// bounded amount of memory, and no client keeps another one waiting.
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // a numeric address or a name of this machine
    int port = 0;                    // 0: any free one
    // The metrics that /metrics shows; must outlive the server. Null: no such page.
    const MetricRegistry* metrics = nullptr;
    // Called before /metrics is made, on the server's one thread, to bring metrics up to date. The rules for
    // a `body`, below, apply. May be empty.
    std::function<void()> refresh_metrics;
    // If `health` returns OK, /healthz answers 200 "ok"; else 503 and the message. /readyz answers by `ready`
    // in this way. Called on the server's one thread; must not wait. Empty: always 200.
    std::function<absl::Status()> health, ready;
    // Returns whether a request may see more than /healthz and /readyz; otherwise it gets 401 and
    // `authorize_hint`. `authorization`: the request's header of this name, or "". `proven`:
    // HttpStream::proven(). Called on the server's one thread. Empty: every request may.
    std::function<bool(absl::string_view authorization, bool proven)> authorize;
    std::string authorize_hint;
    // Makes the stream of a connection that begins as TLS does, whose socket outlives the stream; null: it
    // cannot. Empty: such a connection is answered 400. Others are in the clear anyway.
    std::function<std::unique_ptr<HttpStream>(int socket)> accept_tls;
    // Takes over a connection that begins as HTTP/2 does (RFC 9113, 3.4); nothing has been read from it.
    // Empty: it is answered 400.
    std::function<void(UniqueFd)> on_http2;
    // The limit of a connection, from its first byte to its last.
    std::chrono::milliseconds time_limit{10000};
  };

  // The server listens when this returns. Unavailable, naming the address, if the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options);
  // Start(), on a non-blocking stream socket that listens already; `host` and `port` are not used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> StartOn(UniqueFd listener, const Options& options);
  // Stops listening and closes the connections; waits for a `body` that is being made.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // "127.0.0.1:8080"; with brackets around an IPv6 address.
  std::string address() const;

  // `body` is called for each GET of `path`, on the server's one thread: it must not wait for anything that
  // may take long. Everything that `body` uses must outlive the server. A later call for the same path
  // replaces the earlier.
  void Handle(const std::string& path, const std::string& content_type, std::function<std::string()> body);

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace weir
