#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/exchange/shard_exchange.h"
#include "client/types.h"

namespace weir {

// What the shards' answers to one call mean for its caller. Pure.

// Whether a shard, called `name` in messages, answered as the protocol foresees and with something that the
// call can go on from: done, or disposed of, or past. Aborted: this client is fenced. OutOfRange: the job is
// done. Internal: a
// Divergence(), for which the job has failed.
absl::Status CheckPush(const v1::PushReply& reply, const std::string& name);
// want_count: the only version count that an OK may have; nullptr: any.
absl::Status CheckPull(const v1::PullReply& reply, const std::string& name, const uint64_t* want_count);

// By shard, each answer checked.
PushResult MergePush(const std::vector<ShardAnswer>& answers);
PullResult MergePull(const std::vector<ShardAnswer>& answers);

}  // namespace weir
