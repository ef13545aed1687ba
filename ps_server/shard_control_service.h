#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "proto/shard_control.grpc.pb.h"
#include "ps_server/grpc_event_loop.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The shard's end of the coordinator's stream. One coordinator, once: when its stream ends, so does the
// shard's job. On an event loop; construct, Register(), build the server, Start(). Outlives the loop's
// thread.
class ShardControlService {
 public:
  struct Options {
    // These outlive the stream; the shard may report when the loop has stopped.
    Shard* shard = nullptr;
    GrpcEventLoop* loop = nullptr;
    const Clock* clock = &Clock::Real();
    // Once, when the job is over for this shard: `failure` is empty if it is done. Must not block.
    std::function<void(const std::string& failure)> on_end;
  };
  explicit ShardControlService(Options options);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  void Start();

  // Ends the coordinator's stream, if there is one, and tells it why; no other one can attach. Any thread.
  void Detach(const std::string& why);

  // When the coordinator was last heard; absl::InfinitePast() before it attached.
  absl::Time last_heard() const {
    return busy_.load() ? options_.clock->Now() : absl::FromUnixNanos(last_heard_ns_.load());
  }
  bool attached() const { return attached_.load(); }
  // "ps:0 (coordinator) at 10.0.0.1:2222"
  std::string CoordinatorName() const;

 private:
  class Stream;

  const Options options_;
  v1::ShardControl::AsyncService service_;
  // The loop's: the coordinator's stream, until it is over; and why it was detached.
  Stream* stream_ = nullptr;
  std::optional<std::string> detached_;
  std::atomic<bool> attached_{false};
  std::atomic<int64_t> last_heard_ns_{0};
  // The shard works on a message, so that the next ones wait.
  std::atomic<bool> busy_{false};
  mutable Mutex mutex_;
  // As its Install says.
  std::string coordinator_address_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
