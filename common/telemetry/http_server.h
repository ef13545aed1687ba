#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/telemetry/metrics.h"

namespace weir {

// The small HTTP server of a role: /metrics, /healthz, and pages that its owner adds. GET only, one request a
// connection (an idle connection would hold one of the few threads). Thread-safe. Makes the process ignore
// SIGPIPE.
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // a numeric address or a name of this machine
    int port = 0;                    // 0: any free one
    // What /metrics shows; must outlive the server. Null: no such page.
    const MetricRegistry* metrics = nullptr;
    // /healthz answers 200 "ok" where this is OK, else 503 and the message. Empty: always 200.
    std::function<absl::Status()> health;
  };

  // Listens when it returns. Unavailable, naming the address, if the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options);
  // Stops listening, lets the requests in progress end.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // "127.0.0.1:8080"; with brackets around an IPv6 address.
  std::string address() const;

  // `body` is called for each GET of `path`, by up to 4 threads at once, and what it uses must outlive the
  // server. A later call for the same path replaces the earlier.
  void Handle(const std::string& path, const std::string& content_type, std::function<std::string()> body);

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace weir
