#pragma once

#include <vector>

#include "proto/parameter_server.pb.h"

namespace weir {

// What a shard is to be sent. The tensors are in the model's order.
struct ShardPush {
  // All but caller, elements and dtype.
  v1::PushRequest header;
  std::vector<const float*> gradient;
};
struct ShardPull {
  // All but caller and dtype.
  v1::PullRequest request;
  std::vector<float*> tensors;
};
// What it answered; the fields that were asked for. Outcomes are known ones.
struct ShardAnswer {
  v1::PushReply push;
  v1::PullReply pull;
};

}  // namespace weir
