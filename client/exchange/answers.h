#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/exchange/shard_exchange.h"
#include "client/types.h"

namespace weir {

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
