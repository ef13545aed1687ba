#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/job_token.h"
#include "proto/job_config.pb.h"
#include "ps_server/shard/shard.h"

namespace weir {

// One ps task: a shard, on ps:0 the coordinator too, behind gRPC (with health and reflection), and a page of
// metrics. No gRPC in this header. Thread-safe.
class Server {
 public:
  struct Options {
    v1::JobConfig config;
    // ps:INDEX.
    uint32_t index = 0;
    // Of the job; calls without it are refused. None: ps_server/grpc/grpc_admission.h says who may call what.
    JobToken token;
    // "127.0.0.1:2222", "127.0.0.1:0" (any free port) or "unix:/path".
    std::string listen = "127.0.0.1:0";
    // ps:0: the addresses of all servers, this one's first; if it is only one, the others are learnt from the
    // first worker.
    std::vector<std::string> ps_addresses;
    // Not ps:0: where it is, and what others call this server. It tells ps:0 so while no coordinator is
    // attached, so that it is found where ps:0's list is out of date. The port is the one that is bound where
    // it is 0. Empty: it waits to be found.
    std::string coordinator_address, own_address;
    // ps:0: workers that train.
    uint32_t workers = 1;
    // ps:0: by rank, as messages are to name them: "worker:1 at 10.0.0.1:2222". May be empty.
    std::vector<std::string> worker_names;
    // Metrics, health and status over HTTP. -1: none; 0: any free port.
    int http_port = -1;
    std::string http_host = "127.0.0.1";
    // ps:0: where the summary goes at the end. Empty: nowhere.
    std::string summary_path;
    // For tests.
    Shard::PolicyFactory make_policy = Shard::PolicyFromConfig;
  };

  // Listens when it returns. FailedPrecondition: the address cannot be bound, or this CPU lacks the kernels
  // asked for.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  // Stops at once if the job is not over.
  virtual ~Server() = default;

  // The port that was bound (0 for unix:).
  virtual int port() const = 0;
  // "127.0.0.1:34567".
  virtual std::string address() const = 0;
  virtual int http_port() const = 0;

  // Waits until the job is over. OK: it is done. Cancelled: it was ended, with all that was done saved.
  // AlreadyExists, FailedPrecondition, InvalidArgument, Unauthenticated, PermissionDenied: ps:0 refuses this
  // server, without effect on the job.
  // Internal: training diverged. Unavailable: it ended otherwise. The message says why.
  virtual absl::Status Wait() = 0;
  // Ends the job, from any thread or after a signal.
  virtual void Stop(const std::string& reason) = 0;
  // The same, with a checkpoint first; without one after cluster.server_wait_seconds. Not ps:0: waits a few
  // seconds for it to do so, since whoever stops one server often stops all.
  virtual void Drain(const std::string& reason) = 0;
};

}  // namespace weir
