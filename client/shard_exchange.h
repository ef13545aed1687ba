#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/outgoing_gradient.h"
#include "client/shard_view.h"
#include "client/tensor_arrivals.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// What a shard is to be sent.
struct ShardPush {
  // All but caller, elements and dtype.
  v1::PushRequest header;
  std::shared_ptr<OutgoingGradient> gradient;
};
struct ShardPull {
  // All but caller and dtype.
  v1::PullRequest request;
  // Where the weights go: the caller's tensors, in the model's order,
  std::vector<float*> tensors;
  // or this, which outlives the call.
  ShardView* view = nullptr;
  // The only version count that the weights may have; nullopt: any.
  std::optional<uint64_t> want;
  // Null: nobody wants to know.
  std::shared_ptr<TensorArrivals> arrivals;
};
// What it answered; the fields that were asked for. Outcomes are known ones.
struct ShardAnswer {
  v1::PushReply push;
  v1::PullReply pull;
};

}  // namespace weir
