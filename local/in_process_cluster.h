#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps_server/process/server.h"

namespace weir {

// A job's servers in this process, on free loopback ports, for a worker without a cluster and for tests.
// Workers reach these servers over gRPC like any others. `worker` and `ps_server`, which never include each
// other, meet only here.
class InProcessCluster {
 public:
  struct Options {
    v1::JobConfig config;
    JobToken token;
    uint32_t servers = 1;
    uint32_t workers = 1;
    std::string summary_path;
    int http_port = -1;
    Shard::PolicyFactory make_policy = Shard::PolicyFromConfig;
  };

  static absl::StatusOr<std::unique_ptr<InProcessCluster>> Start(Options options);
  // Stops what still runs.
  ~InProcessCluster() = default;

  // The addresses, by server.
  const std::vector<std::string>& addresses() const { return addresses_; }
  Server* server(uint32_t index) { return servers_[index].get(); }
  // Stops one server, as if its machine had gone.
  void StopServer(uint32_t index) { servers_[index].reset(); }

  // Waits until the job is over on every server, and returns the first error.
  absl::Status Wait();
  // Ends the job for this reason, and waits for its end. If `saves` and the job has checkpoints, takes one
  // first (Server::Drain()). Returns what Wait() does.
  absl::Status End(const std::string& reason, bool saves);

 private:
  std::vector<std::string> addresses_;
  // ps:0 goes first: it tells the others.
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace weir
