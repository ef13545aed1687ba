#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/system/clock.h"
#include "common/threads/mutex.h"
#include "proto/shard_control.grpc.pb.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The shard's end of the coordinator's stream. If the coordinator may not attach again, the end of its stream
// ends the shard's job. Otherwise, or once the coordinator has sent its last ping, the stream of a
// coordinator of the same or a later incarnation follows. On an event loop: construct, Register(), build the
// server, Start(). Outlives the loop's thread.
class ShardControlService {
 public:
  struct Options {
    // These outlive the stream; the shard may still report after the loop has stopped.
    Shard* shard = nullptr;
    GrpcEventLoop* loop = nullptr;
    GrpcAdmission* admission = nullptr;
    const Clock* clock = &Clock::Real();
    // The coordinator may attach again.
    bool may_return = false;
    // This server is ps:`index`.
    uint32_t index = 0;
    // The instance of this process (v1.Attached); 0: it has none.
    uint64_t instance = 0;
    // Called once, when the job is over for this shard: `failure` is OK if the job is done. Must not block.
    std::function<void(const absl::Status& failure)> on_end;
  };
  explicit ShardControlService(Options options);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  void Start();

  // Ends the coordinator's stream, if there is one, and sends the reason. No other coordinator can attach.
  // Any thread.
  void Detach(const std::string& why);
  // A coordinator that was silent for longer than `limit` counts as lost, although its stream has not ended.
  // It may attach again. Any thread.
  void DropSilent(absl::Duration limit);

  // When the coordinator was last heard; nullopt: it has never attached.
  std::optional<absl::Time> last_heard() const {
    if (busy_.load()) return options_.clock->Now();
    const int64_t at = last_heard_ns_.load();
    return at == 0 ? std::nullopt : std::make_optional(absl::FromUnixNanos(at));
  }
  bool attached() const { return attached_.load(); }
  // The job that this server belongs to, that of the first coordinator. Not set: none has attached.
  v1::JobIdentity job() const {
    MutexLock lock(mutex_);
    return job_;
  }
  // "ps:0 (coordinator) at 10.0.0.1:2222"
  std::string CoordinatorName() const;

 private:
  class Stream;

  bool MayReturn() const { return options_.may_return || last_ping_; }
  // NotFound: the coordinator is of another job, or takes this server for another one.
  absl::Status CheckHello(const v1::Hello& hello) const;
  void Heard();
  // The stream is lost; another one may follow.
  void AwaitNext(const std::string& why);

  const Options options_;
  v1::ShardControl::AsyncService service_;
  // Used by the loop only: the coordinator's stream until it is over, the coordinator's incarnation, whether
  // its newest ping was the last one (v1.Ping), and the reason of Detach().
  Stream* stream_ = nullptr;
  uint64_t coordinator_incarnation_ = 0;
  bool last_ping_ = false;
  std::optional<std::string> detached_;
  std::atomic<bool> attached_{false};
  std::atomic<int64_t> last_heard_ns_{0};
  // The shard is handling a message, so later messages wait.
  std::atomic<bool> busy_{false};
  mutable Mutex mutex_;
  // The address in the coordinator's Install.
  std::string coordinator_address_ ABSL_GUARDED_BY(mutex_);
  v1::JobIdentity job_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
