#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call_group.h"
#include "client/call_limits.h"
#include "client/client.h"
#include "client/grpc_poller.h"
#include "client/grpc_shard.h"
#include "client/history.h"
#include "client/outgoing_gradient.h"
#include "client/shard_view.h"
#include "client/tensor_map.h"
#include "common/job_token.h"
#include "google/protobuf/map.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// All shards of a job as one: sends a push, a pull or both to each, checks and records what each answers, and
// hands over what all have said. An error of one ends the call on the others.
//
// Thread-safe. Outlives its calls, as does what it is made with.
class ShardSet {
 public:
  using Answers = std::vector<GrpcShard::Answer>;  // by shard
  // Tensors live until the call is done.
  struct Push {
    Work work;
    PullResult base;
    std::shared_ptr<OutgoingGradient> gradient;
  };
  struct Pull {
    // All but caller.
    v1::PullRequest request;
    // Where the weights go: tensors in the model's order,
    std::vector<float*> tensors;
    // or these, by shard.
    std::shared_ptr<std::vector<ShardView>> views;
    // By shard, the only version count that its weights may have; empty: any.
    std::vector<uint64_t> want;
    // Hears on the polling thread which tensors are whole; may be empty.
    std::function<void(size_t tensor)> on_tensor;
  };
  using Done = std::function<void(absl::StatusOr<Answers>)>;

  // history may be nullptr. on_fatal hears of errors that concern more than their call, before the call is
  // done: Aborted, this client is fenced; Unavailable, a shard was lost; Internal, training diverged. It may
  // run several times, and must not block.
  ShardSet(const std::vector<std::string>& addresses, const JobToken& token, GrpcPoller& poller,
           const TensorMap& tensors, const v1::Caller& caller, const std::atomic<uint64_t>& epoch,
           const v1::WireConfig& wire, CallGroup& group, const CallLimits& limits,
           std::unique_ptr<History> history, std::function<void(const absl::Status&)> on_fatal);

  // Waits until every shard can be reached: at its address or, where that fails, at the one in `otherwise`
  // (by shard; may be empty). Unavailable: one could not be before `deadline`; names it.
  absl::Status Connect(std::chrono::steady_clock::time_point deadline,
                       const std::vector<std::string>& otherwise);

  // These shards are elsewhere, the others where they were at first (v1.HeartbeatReply.moved). Once it has
  // returned, no call takes an answer from where a shard was before.
  void Move(const google::protobuf::Map<uint32_t, std::string>& moved);

  uint32_t size() const { return static_cast<uint32_t>(shards_.size()); }

  // Starts push and pull on the first `shards` shards. `done` runs once, when all of them are through with
  // the tensors.
  void Start(uint32_t shards, std::optional<Push> push, std::optional<Pull> pull, Done done);

  // Tells a shard that was restored of which pushes this client has answers, so that it declares lost what it
  // does not know. Should that not reach it, the next call does.
  void Tell(uint32_t shard);

  // Ends the streams and completes the history, after the last call.
  absl::Status Close();

 private:
  // One call to some shards.
  struct Operation;

  void OnAnswer(const std::shared_ptr<Operation>& operation, uint32_t shard,
                absl::StatusOr<GrpcShard::Answer> answer);
  absl::Status Check(const Operation& operation, uint32_t shard, const GrpcShard::Answer& answer) const;
  void Record(const Operation& operation, uint32_t shard, const GrpcShard::Answer& answer);

  const TensorMap& tensors_;
  const v1::Caller caller_;
  const std::unique_ptr<History> history_;
  const std::function<void(const absl::Status&)> on_fatal_;
  std::vector<std::unique_ptr<GrpcShard>> shards_;
};

}  // namespace weir
