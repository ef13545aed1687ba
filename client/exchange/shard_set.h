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
#include "client/call.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_client.h"
#include "client/exchange/shard_exchange.h"
#include "client/exchange/shared_weights.h"
#include "client/tables/row_routes.h"
#include "client/tensors/outgoing_gradient.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "client/types.h"
#include "google/protobuf/map.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// All shards of a job as one: sends a push, a pull or both to each, checks and records each answer, and hands
// over all answers. An error of one shard ends the call on the others.
//
// Thread-safe. Outlives its calls, as do the objects that it is made with.
class ShardSet {
 public:
  using Answers = std::vector<ShardAnswer>;  // by shard
  // Tensors live until the call is done.
  struct Push {
    Work work;
    PullResult base;
    std::shared_ptr<OutgoingGradient> gradient;
    double weight = 0;  // ExchangeOrder::Push::weight
    // `gradient` is the model's initial values, float32 on the wire; `work` and `base` have no meaning.
    bool initial_values = false;
  };
  struct Pull {
    // All fields but caller and rows.
    v1::PullRequest request;
    // If `views` is null, the weights go to these tensors, in the model's order.
    std::vector<float*> tensors;
    // If not null, the weights go to these views, by shard.
    std::shared_ptr<std::vector<ShardView>> views;
    // By shard, the only version count that its weights may have; empty: any.
    std::vector<uint64_t> want;
    // Called on the event loop for each tensor that is whole; may be empty.
    std::function<void(size_t tensor)> on_tensor;
  };
  using Done = std::function<void(absl::StatusOr<Answers>)>;

  // Gets each shard's answer before it is checked, on the event loop.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnPush(const Push& push, uint32_t shard, const v1::PushReply& reply) = 0;
    // The tensors or views hold what came. Not called for pulls of the header alone, nor if no pull followed
    // the push.
    virtual void OnPull(const Pull& pull, uint32_t shard, const v1::PullReply& reply) = 0;
  };

  // observer may be nullptr. If it is not, the shards send the clocks of all workers, too. on_fatal gets the
  // errors that concern more than their call, before the call is done. Aborted: this client is fenced.
  // Unavailable: a shard was lost. Internal: training diverged. on_fatal may run several times, and must not
  // block.
  ShardSet(std::vector<std::unique_ptr<ShardChannel>> channels, const ShardClient::Shared& shared,
           Observer* observer, std::function<void(const absl::Status&)> on_fatal);

  // The shards in `moved` are at these addresses, the others at their first ones (v1.HeartbeatReply.moved).
  // Once Move() has returned, no call takes an answer from a shard's earlier address.
  void Move(const google::protobuf::Map<uint32_t, std::string>& moved);

  uint32_t size() const { return static_cast<uint32_t>(shards_.size()); }

  // Starts push and pull on the first `shards` shards, with the rows of both; null: they have none. `done`
  // runs once, when no shard uses the tensors any more.
  void Start(uint32_t shards, std::optional<Push> push, std::optional<Pull> pull,
             const std::shared_ptr<const RowRoutes>& rows, Done done);

  // Tells a restored shard which pushes of this client were answered, so that the shard declares lost the
  // pushes that it does not know. If this call does not arrive, the next call to the shard tells it.
  void Tell(uint32_t shard);

  // Ends the streams. Called after the last call, and not on the event loop.
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

// The meaning of the shards' answers to one call for its caller. Pure.

// Checks that a shard, called `name` in messages, answered as the protocol allows, and that the client can
// continue: the call is done, disposed of, or past. Aborted: this client is fenced. OutOfRange: the job is
// done. Internal: a Divergence(), for which the job has failed.
absl::Status CheckPush(const v1::PushReply& reply, const std::string& name);
// want_count: the only version count that an OK answer may have; nullptr: any.
absl::Status CheckPull(const v1::PullReply& reply, const std::string& name, const uint64_t* want_count);

// `answers` are by shard, and each was checked.
PushResult MergePush(const std::vector<ShardAnswer>& answers);
PullResult MergePull(const std::vector<ShardAnswer>& answers);

}  // namespace weir
