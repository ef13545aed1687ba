#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/grpc_credentials.h"
#include "common/system/clock.h"
#include "common/system/file_system.h"
#include "ps_server/grpc/coordinator_service.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/grpc/shard_control_service.h"
#include "ps_server/process/coordinator_watch.h"
#include "ps_server/process/server.h"
#include "ps_server/process/server_threads.h"
#include "ps_server/shard/shard.h"

namespace weir {

// ps:0, as the other servers have it: takes its stream (ShardControlService), reports this server's address
// to it, and watches whether it is still there (CoordinatorWatch).
//
// Construct, Register(), build the server, Start(), Tick() again and again, StopAnnouncing(), Detach().
// Outlives the loop's thread and the background's.
class GrpcRemoteCoordinator {
 public:
  struct Options {
    // These outlive it.
    Shard* shard = nullptr;
    GrpcEventLoop* loop = nullptr;
    GrpcAdmission* admission = nullptr;
    const Clock* clock = nullptr;
    BackgroundThreads* background = nullptr;
    // Where checkpoints lie.
    FileSystem* files = nullptr;
    const Server::Options* server = nullptr;
    // Of this process (v1.Attached).
    uint64_t instance = 0;
    std::shared_ptr<const JobCredentials> credentials;
    // The server ends; OK: the job is done. All calls after the first have no effect. Any thread. Must not
    // block.
    std::function<void(const absl::Status& failure)> end;
  };
  explicit GrpcRemoteCoordinator(Options options);
  ~GrpcRemoteCoordinator();

  void Register(grpc::ServerBuilder* builder) {
    control_.Register(builder);
    refusals_.Register(builder);
  }
  // `port`: that was bound.
  absl::Status Start(uint16_t port);
  void Tick(absl::Time now);
  // Must be called before the loop stops.
  void StopAnnouncing();
  // As in ShardControlService. Any thread.
  void Detach(const std::string& why) { control_.Detach(why); }
  bool attached() const { return control_.attached(); }

 private:
  class Announcer;

  ShardControlService::Options Control() const;
  CoordinatorWatch::Options Watch();
  // Whether the newest checkpoint is the end of the job.
  bool IsDone() const;

  const Options options_;
  ShardControlService control_;
  CoordinatorService refusals_;
  CoordinatorWatch watch_;
  std::shared_ptr<Announcer> announcer_;  // if the address of ps:0 is known
};

}  // namespace weir
