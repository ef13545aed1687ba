#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/exchange/shard_channel.h"
#include "client/grpc/grpc_poller.h"
#include "client/shared_memory/shared_memory_link.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/job_token.h"
#include "common/threads/mutex.h"
#include "proto/job_config.pb.h"

namespace weir {

// The channel to a shard over gRPC, and through shared memory if the server is on this host. After the shard
// has moved or has been out of reach, the connection is made anew and the transport is chosen anew, because
// what held before need not hold any more.
class GrpcShardChannel final : public ShardChannel {
 public:
  struct Options {
    uint32_t index = 0;
    std::string address;
    JobToken token;
    std::shared_ptr<const JobCredentials> credentials = std::make_shared<const JobCredentials>(nullptr);
    v1::WireConfig wire;
    // The most that an exchange brings: the size of the shard's weights, or more.
    int64_t bytes = 0;
    // How long the shard may be away.
    std::chrono::nanoseconds server_wait{};
  };
  // The poller outlives the streams.
  GrpcShardChannel(Options options, GrpcPoller& poller);
  ~GrpcShardChannel() override;

  absl::Status Connect(std::chrono::steady_clock::time_point deadline, const std::string& otherwise,
                       const std::function<absl::Status()>& alive) override;
  std::string name() const override;
  bool MoveTo(const std::string& address) override;
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) override;

 private:
  struct Connection;

  std::string NameOf(const std::string& address) const;
  // `attempt` as for MakeDataChannel().
  absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeData(
      const std::string& address, std::optional<std::chrono::nanoseconds> attempt) const;
  // Shared memory for a new stream; null if it is not wanted or not available.
  std::unique_ptr<SharedMemoryLink> ShareMemory() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoSharedMemory(const std::string& name, absl::string_view why) const;

  const Options options_;
  GrpcPoller& poller_;

  mutable Mutex mutex_;
  // Where the shard is while it has not moved, and where it is now.
  std::string home_ ABSL_GUARDED_BY(mutex_), address_ ABSL_GUARDED_BY(mutex_);
  // The connection to address_; null: still to be made.
  std::unique_ptr<Connection> connection_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
