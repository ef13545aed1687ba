#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"
#include "google/protobuf/repeated_field.h"
#include "proto/job_config.pb.h"
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
// The job's embedding tables.
google::protobuf::RepeatedPtrField<v1::TableConfig> ExchangedTables();
// The incarnations of its shard and of its worker, and the worker's epoch.
inline constexpr uint64_t kShardIncarnation = 77, kWorkerIncarnation = 100, kEpoch = 1;

// The messages that a well-behaved client sends to the shard, in its order: a push, a pull, both in one, a
// bfloat16 push, a refusal, and a gradient in shared memory. Also rows pushed and pulled, and keys of a pull
// in two pieces.
std::vector<v1::ExchangeRequest> Requests();

}  // namespace weir
