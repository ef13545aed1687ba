#include "local/in_process_cluster.h"

#include <utility>

#include "common/base/status_macros.h"

namespace weir {

absl::StatusOr<std::unique_ptr<InProcessCluster>> InProcessCluster::Start(Options options) {
  auto cluster = std::make_unique<InProcessCluster>();
  for (uint32_t index = 0; index < options.servers; ++index) {
    Server::Options server;
    server.config = options.config;
    server.token = options.token;
    server.index = index;
    server.workers = options.workers;
    server.make_policy = options.make_policy;
    if (index == 0) {
      server.summary_path = options.summary_path;
      server.http_port = options.http_port;
    }
    WEIR_ASSIGN_OR_RETURN(cluster->servers_.emplace_back(), Server::Start(std::move(server)));
    cluster->addresses_.push_back(cluster->servers_.back()->address());
  }
  return cluster;
}

absl::Status InProcessCluster::Wait() {
  absl::Status first;
  for (const auto& server : servers_) {
    if (server == nullptr) continue;
    const absl::Status status = server->Wait();
    if (first.ok()) first = status;
  }
  return first;
}

absl::Status InProcessCluster::End(const std::string& reason, bool saves) {
  // ps:0 tells the others.
  if (saves) {
    servers_.front()->Drain(reason);
  } else {
    servers_.front()->Stop(reason);
  }
  return Wait();
}

}  // namespace weir
