#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/call_group.h"
#include "client/call_limits.h"
#include "client/tensor_map.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// One shard as a client sees it: its channel, and exchanges of tensors over it, cut into chunks.
//
// Thread-safe. Outlives its exchanges, as do the tensor map, the group and the epoch.
class GrpcShard {
 public:
  // What a shard is to be sent. The tensors are in the model's order.
  struct Push {
    // All but caller, elements, first and gradient.
    v1::PushRequest header;
    std::vector<const float*> gradient;
  };
  struct Pull {
    // All but caller.
    v1::PullRequest request;
    std::vector<float*> tensors;
  };
  // What it answered; the fields that were asked for. Outcomes are known ones, and `weights` is left empty.
  struct Answer {
    v1::PushReply push;
    v1::PullReply pull;
  };
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  // `caller.epoch` is taken from `epoch` anew for each try. server_wait: limits.unreachable of every
  // exchange.
  GrpcShard(uint32_t index, std::string address, const TensorMap& tensors, const v1::Caller& caller,
            const std::atomic<uint64_t>& epoch, CallGroup& group, const CallLimits& limits);
  ~GrpcShard();

  // Waits until the shard can be reached. Unavailable: not before `deadline`.
  absl::Status Connect(std::chrono::steady_clock::time_point deadline);

  // Pushes, pulls, or both as one exchange (in this order, as far as the answer to the push lets the pull
  // follow; else the pull is sent apart). Bytes are sent and written as they come: the tensors must live
  // until `done`, and after an error a pull's may be written in part. `done` runs once, and must not block.
  //
  // Retried until limits are reached; an answer that breaks the protocol is an Internal error.
  std::shared_ptr<Call> Exchange(std::optional<Push> push, std::optional<Pull> pull, Done done);

  // "ps:1 at 10.0.0.1:2222".
  const std::string& name() const;

  // For use by one exchange.
  struct Impl;

 private:
  const std::unique_ptr<Impl> impl_;
};

}  // namespace weir
