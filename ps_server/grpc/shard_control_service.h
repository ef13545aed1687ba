#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/sync/mutex.h"
#include "common/system/clock.h"
#include "proto/shard_control.grpc.pb.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The shard's end of the coordinator's stream. One coordinator, once: when its stream ends, so does the
// shard's job; or, if it may attach again, that of a coordinator of the same or a later life follows. On an
// event loop; construct, Register(), build the server, Start(). Outlives the loop's thread.
class ShardControlService {
 public:
  struct Options {
    // These outlive the stream; the shard may report when the loop has stopped.
    Shard* shard = nullptr;
    GrpcEventLoop* loop = nullptr;
    GrpcAdmission* admission = nullptr;
    const Clock* clock = &Clock::Real();
    // The coordinator may attach again.
    bool may_return = false;
    // Of this process (v1.Attached); 0: it has none to give.
    uint64_t instance = 0;
    // Once, when the job is over for this shard: `failure` is OK if it is done. Must not block.
    std::function<void(const absl::Status& failure)> on_end;
  };
  explicit ShardControlService(Options options);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  void Start();

  // Ends the coordinator's stream, if there is one, and tells it why; no other one can attach. Any thread.
  void Detach(const std::string& why);
  // A coordinator that was not heard for so long is taken for lost, though its stream has not ended; it may
  // attach again. Any thread.
  void DropSilent(absl::Duration limit);

  // When the coordinator was last heard; nullopt: it never attached.
  std::optional<absl::Time> last_heard() const {
    if (busy_.load()) return options_.clock->Now();
    const int64_t at = last_heard_ns_.load();
    return at == 0 ? std::nullopt : std::make_optional(absl::FromUnixNanos(at));
  }
  bool attached() const { return attached_.load(); }
  // "ps:0 (coordinator) at 10.0.0.1:2222"
  std::string CoordinatorName() const;

 private:
  class Stream;

  void Heard();
  // The stream is lost; there may be another.
  void AwaitNext(const std::string& why);

  const Options options_;
  v1::ShardControl::AsyncService service_;
  // The loop's: the coordinator's stream, until it is over; its life; and why it was detached.
  Stream* stream_ = nullptr;
  uint64_t coordinator_incarnation_ = 0;
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
