#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/rpc/job_token.h"
#include "common/sync/mutex.h"
#include "ps_server/coordinator/shard_link.h"
#include "ps_server/grpc/grpc_event_loop.h"

namespace weir {

// In the initial metadata of a stream that the shard accepts: its protocol version.
inline constexpr char kAttachedMetadata[] = "weir-attached";

// The coordinator's ends of ShardControl.Attach, to shards of other processes; on an event loop, where their
// events happen. Thread-safe.
class GrpcShardLinks {
 public:
  // The loop outlives the links.
  GrpcShardLinks(GrpcEventLoop* loop, JobToken token) : loop_(loop), token_(std::move(token)) {}
  // Close() comes first.
  ~GrpcShardLinks() = default;

  // What a link sends after Close() goes nowhere. A link that is destroyed ends its stream, unless it brings
  // a Shutdown, and is heard of no more but for an event that is on its way.
  std::unique_ptr<ShardLink> Open(const std::string& address, ShardLinkEvents events);

  // Ends all streams; waits (at most two seconds) for shards that were sent a Shutdown to take it. No event
  // comes afterwards. Before the loop stops, and not on its thread.
  void Close();

 private:
  class Stream;
  class Link;

  GrpcEventLoop* const loop_;
  const JobToken token_;
  // The loop's: those whose calls are not over.
  std::set<std::shared_ptr<Stream>> streams_;
  Mutex mutex_;
  CondVar changed_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
