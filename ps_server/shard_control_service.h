#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "proto/shard_control.grpc.pb.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The shard's end of the coordinator's stream. One coordinator, once: when its stream ends, so does the
// shard's job.
class ShardControlService final : public v1::ShardControl::CallbackService {
 public:
  struct Options {
    Shard* shard = nullptr;  // outlives the service
    const Clock* clock = &Clock::Real();
    // Once, when the job is over for this shard: `failure` is empty if it is done. Must not block.
    std::function<void(const std::string& failure)> on_end;
  };
  explicit ShardControlService(Options options);

  grpc::ServerBidiReactor<v1::ControlMessage, v1::ShardReport>* Attach(
      grpc::CallbackServerContext* context) override;

  // Ends the coordinator's stream, if there is one, and tells it why.
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
  void End(const std::string& failure);

  const Options options_;
  std::atomic<bool> attached_{false};
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> last_heard_ns_{0};
  // The shard works on a message, so that the next ones wait.
  std::atomic<bool> busy_{false};
  mutable Mutex mutex_;
  std::weak_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  // As its Install says.
  std::string coordinator_address_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
