#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/protocol/limits.h"
#include "common/rpc/identity.h"
#include "common/rpc/job_token.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"
#include "ps_server/grpc/client_limits.h"
#include "ps_server/grpc/rpc_roles.h"

namespace weir {

// Decides which processes may call a server: the one place, for unary calls and streams. Checked once for
// each call, before any of its request is read or parsed, and once for each message that speaks for somebody.
// Only health and reflection are open to all who are connected.
//
// With a token, a caller must send the token. With TLS, a caller's certificate must give the role that the
// call needs (RpcRules()); a caller on a Unix socket has none, and was checked when it connected. With
// neither, every process that reaches the server is admitted, except that control calls are refused to
// processes of other users, as far as this machine can tell. This check takes milliseconds, so its refusal is
// repeated for a second without a new check.
//
// A caller that was admitted may still come too often: Joins have a rate, of each host, or with TLS of each
// identity there.
//
// A refusal changes nothing. It is counted, and logged at most once a minute for each peer. Thread-safe
// except for SetPort().
class GrpcAdmission {
 public:
  // `job`: of the server's own certificate; empty: there is no TLS.
  GrpcAdmission(JobToken token, std::string job, double joins_per_second)
      : token_(std::move(token)),
        job_(std::move(job)),
        joins_per_second_(joins_per_second),
        joins_(joins_per_second, kJoinSeconds * joins_per_second, kMostRefusals) {}
  // The port to which the server is bound, 0 for a Unix socket. Must be called before the first call.
  void SetPort(uint16_t port) { port_ = port; }

  // OK, or the status that ends the call: UNAUTHENTICATED, PERMISSION_DENIED; UNAVAILABLE: too many Joins.
  // Sets `caller` to the identity of its certificate; nullopt: there is none.
  grpc::Status Admit(const grpc::ServerContext& context, const RpcRule& rule,
                     std::optional<Identity>* caller);
  // Admit() for a message of an admitted call. `pushes`: the message pushes a gradient.
  grpc::Status AdmitMessage(const grpc::ServerContext& context, const RpcRule& rule,
                            const std::optional<Identity>& caller, const Speaker& speaker,
                            bool pushes = false);

  // For metrics; any thread.
  const std::atomic<uint64_t>& unauthenticated() const { return unauthenticated_; }
  const std::atomic<uint64_t>& denied() const { return denied_; }
  // Of the whole server: what finds a limit reached counts it here.
  LimitCounters& limits() { return limits_; }
  const LimitCounters& limits() const { return limits_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostRefusals = 1024;
  // Over so many seconds a caller's Joins are counted: all workers of a host may be started at once.
  static constexpr double kJoinSeconds = 10;
  struct Refusal {
    Clock::time_point until;
    grpc::Status status;
  };

  grpc::Status Check(const grpc::ServerContext& context, const RpcRule& rule,
                     std::optional<Identity>* caller);
  grpc::Status CheckUser(const grpc::ServerContext& context);
  grpc::Status CheckRate(const grpc::ServerContext& context, const std::optional<Identity>& caller);
  // Counts and logs the status if it is a refusal. Returns it.
  grpc::Status Note(grpc::Status status, const grpc::ServerContext& context, const RpcRule& rule,
                    const std::optional<Identity>& caller);

  const JobToken token_;
  const std::string job_;
  const double joins_per_second_;
  uint16_t port_ = 0;
  std::atomic<uint64_t> unauthenticated_{0}, denied_{0};
  LimitCounters limits_;
  Mutex mutex_;
  // By peer, as gRPC writes it: "ipv4:127.0.0.1:2222". At most kMostRefusals.
  std::map<std::string, Refusal> refusals_ ABSL_GUARDED_BY(mutex_);
  // By the peer's host and identity.
  LogLimits logged_ ABSL_GUARDED_BY(mutex_){absl::Minutes(1), kMostRefusals};
  RateLimits joins_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
