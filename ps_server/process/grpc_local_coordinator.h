#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>

#include "absl/status/status.h"
#include "common/rpc/grpc_credentials.h"
#include "common/system/clock.h"
#include "common/system/file_system.h"
#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc/coordinator_service.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/grpc/grpc_shard_link.h"
#include "ps_server/process/server.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The coordinator in the process of ps:0, with its ways to others: to members (CoordinatorService), to the
// shards of other processes (GrpcShardLinks) and to the shard of its own, and to checkpoints
// (JobStoreOnDisk).
//
// Construct, Register(), build the server, Start(), CloseLinks(), stop the loop, Destroy(). Outlives the
// loop's thread.
class GrpcLocalCoordinator {
 public:
  struct Options {
    // These outlive the coordinator.
    Shard* shard = nullptr;
    GrpcEventLoop* loop = nullptr;
    GrpcAdmission* admission = nullptr;
    const Clock* clock = nullptr;
    // Where checkpoints lie.
    FileSystem* files = nullptr;
    const Server::Options* server = nullptr;
    // The id of the job, if one begins here. Not 0.
    uint64_t new_job = 0;
    std::shared_ptr<const JobCredentials> credentials;
    // As in Coordinator::Options.
    uint64_t memory_bytes = 0;
    std::function<void(const v1::ClusterStatus& status, const absl::Status& failure)> on_end;
  };
  explicit GrpcLocalCoordinator(Options options);

  void Register(grpc::ServerBuilder* builder) { service_.Register(builder); }
  absl::Status Start();
  // Null before Start(), and if that failed.
  Coordinator* coordinator() const { return coordinator_.get(); }
  // As in GrpcShardLinks.
  void CloseLinks();
  // The shard reports no more.
  void Destroy() {
    if (search_.valid()) search_.wait();
    coordinator_.reset();
  }

 private:
  const Options options_;
  CoordinatorService service_;
  std::unique_ptr<GrpcShardLinks> links_;  // from Start() on
  // For a whole checkpoint in checkpoint.init_from: calls the coordinator at its end.
  std::future<void> search_;
  std::unique_ptr<Coordinator> coordinator_;  // last: its links are of links_
};

}  // namespace weir
