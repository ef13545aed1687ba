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
#include "client/call/call_group.h"
#include "client/call/call_limits.h"
#include "client/exchange/event_loop.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_client.h"
#include "client/exchange/shard_view.h"
#include "client/tensors/outgoing_gradient.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "client/types.h"
#include "google/protobuf/map.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// All shards of a job as one: sends a push, a pull or both to each, checks and records what each answers, and
// hands over what all have said. An error of one ends the call on the others.
//
// Thread-safe. Outlives its calls, as does what it is made with.
class ShardSet {
 public:
  using Answers = std::vector<ShardAnswer>;  // by shard
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
    // Hears on the event loop which tensors are whole; may be empty.
    std::function<void(size_t tensor)> on_tensor;
  };
  using Done = std::function<void(absl::StatusOr<Answers>)>;

  // Is told what each shard answered before that is checked, on the event loop.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnPush(const Push& push, uint32_t shard, const v1::PushReply& reply) = 0;
    // Tensors or views hold what came. Not of pulls for the header alone, nor where none followed the push.
    virtual void OnPull(const Pull& pull, uint32_t shard, const v1::PullReply& reply) = 0;
  };

  // observer may be nullptr; where it is there, shards tell it the clocks of all workers. on_fatal hears of
  // errors that concern more than their call, before the call is done: Aborted, this client is fenced;
  // Unavailable, a shard was lost; Internal, training diverged. It may run several times, and must not block.
  ShardSet(std::vector<std::unique_ptr<ShardChannel>> channels, EventLoop& loop, const TensorMap& tensors,
           const v1::Caller& caller, const std::atomic<uint64_t>& epoch, const WireOptions& wire,
           CallGroup& group, const CallLimits& limits, Observer* observer,
           std::function<void(const absl::Status&)> on_fatal);

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

  // Ends the streams, after the last call. Not on the event loop.
  void Close();

 private:
  // One call to some shards.
  struct Operation;

  void OnAnswer(const std::shared_ptr<Operation>& operation, uint32_t shard,
                absl::StatusOr<ShardAnswer> answer);
  absl::Status Check(const Operation& operation, uint32_t shard, const ShardAnswer& answer) const;

  const TensorMap& tensors_;
  const v1::Caller caller_;
  Observer* const observer_;
  const std::function<void(const absl::Status&)> on_fatal_;
  std::vector<std::unique_ptr<ShardClient>> shards_;
};

}  // namespace weir
