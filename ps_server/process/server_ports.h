#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/limits.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/telemetry/metrics.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {

// A server's ports for those who look after it. Health is in the clear for everybody, since probes have no
// certificate. Thread-safe.
class ServerPorts {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    // Metrics, the job's status and dashboard, and health. -1: no such port; 0: any free one.
    int http_port = -1;
    // Health alone: over HTTP, and over gRPC on the same port. -1: no such port; 0: any free one.
    int health_port = -1;
    // Requests for more than health need a proof: the token, as bearer or as the password of any user, or TLS
    // and a certificate of the job.
    bool closed = false;
    JobToken token;  // may be none
    // http_port speaks TLS as well as plain HTTP. Null: no TLS.
    std::shared_ptr<const Tls> tls;
    // As in HttpServer.
    std::function<absl::Status()> health, ready;
    // Names of services that gRPC's health knows.
    std::set<std::string> services;
    // Counts connections that are refused.
    LimitCounters* limits = nullptr;
    MetricRegistry* metrics = nullptr;
    // On ps:0; else null.
    Coordinator* coordinator = nullptr;
  };

  // The objects that Options points to must outlive this object. FailedPrecondition: a port is taken.
  static absl::StatusOr<std::unique_ptr<ServerPorts>> Start(Options options);
  ~ServerPorts();

  // -1: there is none.
  int http_port() const;
  int health_port() const;
  // gRPC's health says NOT_SERVING from now on.
  void EndServing();

 private:
  struct State;
  explicit ServerPorts(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace weir
