#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Inputs that stand for several messages: each message is its length, in two bytes (little-endian), and its
// bytes.

std::string JoinMessages(const std::vector<std::string>& messages);

// The last message may be shorter than its length says.
std::vector<std::string> SplitMessages(absl::string_view input);

// The model of the targets that exchange: one tensor of so many elements.
inline constexpr int64_t kElements = 40;
ModelSpec ExchangedModel();
// The incarnations of its shard and of its worker, and the worker's epoch.
inline constexpr uint64_t kShardIncarnation = 77, kWorkerIncarnation = 100, kEpoch = 1;

// What a well-behaved client sends to the shard, in its order: a push, a pull, both in one, a bfloat16 push,
// a refusal, a gradient in shared memory.
std::vector<v1::ExchangeRequest> Requests();

}  // namespace weir
