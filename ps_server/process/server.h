#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/job_config.pb.h"
#include "ps_server/shard/shard.h"

namespace weir {

// One ps task: serves a shard, and on ps:0 the coordinator too, over gRPC (with health and reflection), and
// metrics over HTTP. No gRPC in this header. Thread-safe.
class Server {
 public:
  struct Options {
    v1::JobConfig config;
    // ps:INDEX.
    uint32_t index = 0;
    // The job's token; calls without it are refused. None: ps_server/grpc/grpc_admission.h says which calls
    // are allowed.
    JobToken token;
    // This server's part in the job's TLS; null: its connections are in the clear.
    std::shared_ptr<const Tls> tls;
    // "127.0.0.1:2222", "127.0.0.1:0" (any free port) or "unix:/path".
    std::string listen = "127.0.0.1:0";
    // ps:0: the addresses of all servers, this one's first. If there is only one, ps:0 learns the others from
    // the first worker.
    std::vector<std::string> ps_addresses;
    // Not ps:0: the address of ps:0, and this server's address for other processes. The server reports its
    // address to ps:0 (AnnounceSchedule), so ps:0 finds it although its own list is out of date. Port 0
    // stands for the bound port. Empty: the server waits until ps:0 attaches.
    std::string coordinator_address, own_address;
    // ps:0: workers that train.
    uint32_t workers = 1;
    // ps:0: the workers' names in messages, by rank: "worker:1 at 10.0.0.1:2222". May be empty.
    std::vector<std::string> worker_names;
    // Metrics, health and status over HTTP. -1: none; 0: any free port.
    int http_port = -1;
    std::string http_host = "127.0.0.1";
    // Whether pages other than health demand a proof there, and the token that is one (ServerPorts).
    bool http_closed = false;
    JobToken http_token;
    // Health alone, over HTTP and gRPC, for probes that have no certificate. -1: none; 0: any free port.
    int health_port = -1;
    // ps:0: the file for the summary at the end. Empty: none.
    std::string summary_path;
    // ps:0: the folder where the job's values over time go, for TensorBoard. Empty: nowhere.
    std::string tensorboard_dir;
    // For tests.
    Shard::PolicyFactory make_policy = Shard::PolicyFromConfig;
  };

  // The server listens when this returns. FailedPrecondition: the address cannot be bound, or this CPU lacks
  // the configured kernels. Unavailable: checkpoint.directory is in object storage, which did not answer.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  // Whether this host's CPU and kernel have what the config asks for by name. Start() checks it, too.
  static absl::Status CheckHost(const v1::JobConfig& config);
  // Stops at once if the job is not over.
  virtual ~Server() = default;

  // The port that was bound (0 for unix:).
  virtual int port() const = 0;
  // "127.0.0.1:34567".
  virtual std::string address() const = 0;
  // -1: there is none.
  virtual int http_port() const = 0;
  virtual int health_port() const = 0;

  // Waits until the job is over. OK: the job is done. Cancelled: the job was asked to end, and all finished
  // work is saved. AlreadyExists, FailedPrecondition, InvalidArgument, Unauthenticated, PermissionDenied:
  // ps:0 refuses this server, without effect on the job. Internal: training diverged. Unavailable: the job
  // ended for another reason. The message says why.
  virtual absl::Status Wait() = 0;
  // Ends the job. Any thread.
  virtual void Stop(const std::string& reason) = 0;
  // As Stop(), but saves a checkpoint first; after cluster.server_wait_seconds the job ends without one.
  // Servers other than ps:0 wait a few seconds for ps:0 to do so, because whoever stops one server often
  // stops all.
  virtual void Drain(const std::string& reason) = 0;
};

}  // namespace weir
