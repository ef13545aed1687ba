#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator.pb.h"
#include "tests/chaos/acts.h"

namespace weir {

// A process that may join the job, and abuses its right: each call is as the protocol has it, but it takes
// all that it can get and gives nothing back. For one thread.
class Insider {
 public:
  struct Options {
    std::vector<std::string> servers;  // ps:0 and the others, "127.0.0.1:2222"
    std::string config_path;           // the job's config
    std::string token_path;            // empty: the job has no token
    TlsFiles tls;                      // a reader's or worker:0's; empty: the job has no TLS
  };
  // Fails if a file cannot be read.
  static absl::StatusOr<std::unique_ptr<Insider>> Create(const Options& options, Acts* acts);

  // "readers", ...
  static const std::vector<std::string>& Kinds();
  // A description of the kind, for people.
  static std::string Describe(const std::string& kind);
  // Returns when `stop` is set.
  void Run(const std::string& kind, const std::atomic<bool>& stop);

 private:
  Insider(const Options& options, JobToken token, std::shared_ptr<const Tls> tls, Acts* acts);
  void HoardReaders(const std::atomic<bool>& stop);
  void FloodWithJoins(const std::atomic<bool>& stop);
  std::shared_ptr<grpc::Channel> Connect(uint32_t server, uint64_t connection) const;
  // A Join of a new process, to which nobody objects.
  v1::JoinRequest NextJoin(v1::Role role);

  const std::vector<std::string> servers_;
  const JobToken token_;
  const JobCredentials credentials_;
  Acts* const acts_;
  v1::JoinRequest join_;
  uint64_t instances_;
};

}  // namespace weir
