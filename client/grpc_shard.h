#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/call_group.h"
#include "client/call_limits.h"
#include "client/grpc_poller.h"
#include "client/shard_exchange.h"
#include "client/tensor_map.h"
#include "common/job_token.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// One shard as a client sees it: its channel, one stream at a time, and the calls that travel on it. The
// channel is made anew, and with it the choice of a transport, where the shard is at another address or has
// been out of reach: what it was then need not hold any more.
//
// Thread-safe. Outlives its calls, as do the poller, the tensor map, the group and the epoch.
class GrpcShard {
 public:
  using Push = ShardPush;
  using Pull = ShardPull;
  using Answer = ShardAnswer;
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  // `caller.epoch` is taken from `epoch` anew for each try. server_wait: limits.unreachable of every
  // call.
  GrpcShard(uint32_t index, std::string address, const JobToken& token, GrpcPoller& poller,
            const TensorMap& tensors, const v1::Caller& caller, const std::atomic<uint64_t>& epoch,
            const v1::WireConfig& wire, CallGroup& group, const CallLimits& limits);
  ~GrpcShard();

  // Once, before all calls: waits until the shard can be reached. Where it is also looked for, unless it has
  // moved: at `otherwise`, if not empty; there it stays then. Unavailable: not before `deadline`.
  // FailedPrecondition: not in the way that the job's config asks for.
  absl::Status Connect(std::chrono::steady_clock::time_point deadline, const std::string& otherwise);

  // The shard is at this address now; empty: where it was first. Once this has returned, no call takes an
  // answer from another address: those under way begin again. Thread-safe.
  void MoveTo(const std::string& address);

  // Pushes, pulls, or both as one exchange (in this order, as far as the answer to the push lets the pull
  // follow; else the pull is sent apart). Bytes are sent and written as they come: the tensors must live
  // until `done`, and after an error a pull's may be written in part. `done` runs once, on the polling thread
  // or within this call, and must not block.
  //
  // Retried until limits are reached; an answer that breaks the protocol is an Internal error.
  std::shared_ptr<Call> Exchange(std::optional<Push> push, std::optional<Pull> pull, Done done);

  // All pushes with lower clocks were answered, in one life of the shard or another.
  uint64_t answered_clock() const;

  // Ends the stream, after the last call. Not on the polling thread.
  void Close();

  // "ps:1 at 10.0.0.1:2222".
  std::string name() const;

  // For use by one call.
  struct Impl;

 private:
  const std::unique_ptr<Impl> impl_;
};

}  // namespace weir
