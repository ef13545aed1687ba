#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/rpc/grpc_credentials.h"
#include "common/rpc/job_token.h"
#include "common/threads/mutex.h"
#include "ps_server/coordinator/shards/shard_fleet.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// The entry for the protocol version in the initial metadata of a stream that the shard accepts.
inline constexpr char kAttachedMetadata[] = "weir-attached";

// The coordinator's ends of ShardControl.Attach, for shards in other processes. Their events happen on an
// event loop. Thread-safe.
class GrpcShardLinks {
 public:
  // The loop outlives the links.
  GrpcShardLinks(GrpcEventLoop* loop, JobToken token, std::shared_ptr<const JobCredentials> credentials)
      : loop_(loop), token_(std::move(token)), credentials_(std::move(credentials)) {}
  // Close() must be called before.
  ~GrpcShardLinks() = default;

  // Messages that a link sends after Close() are dropped. Destroying a link ends its stream, unless the
  // stream carries a Shutdown. After that the link reports no more events, except for one that is already in
  // progress.
  std::unique_ptr<ShardLink> Open(uint32_t index, const std::string& address, ShardLinkEvents events);

  // Ends all streams, and waits at most two seconds for shards that were sent a Shutdown to receive it. No
  // event comes afterwards. Must be called before the loop stops, and not on its thread.
  void Close();

 private:
  class Stream;
  class Link;

  GrpcEventLoop* const loop_;
  const JobToken token_;
  const std::shared_ptr<const JobCredentials> credentials_;
  // Used by the loop only: the streams whose calls are not over.
  std::set<std::shared_ptr<Stream>> streams_;
  Mutex mutex_;
  CondVar changed_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
