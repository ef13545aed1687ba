#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"

// The ShardState in the header of a shard's file, and how states are merged when the number of shards
// changes. Pure functions.
namespace weir {

// The key in the file's metadata.
constexpr const char kStateKey[] = "weir.state";

// InvalidArgument: shard or workers out of order or range, intervals empty, out of order or touching.
absl::Status CheckShardState(const v1::ShardState& state);
std::string EncodeShardState(const v1::ShardState& state);
// InvalidArgument names `source`.
absl::StatusOr<v1::ShardState> ParseShardState(const std::string& text, const std::string& source);

// The state of one of `num_shards` new shards, whose elements come from all old ones. `old`: all old states.
//
// In sync all old shards are at one step, so there is nothing to decide. Otherwise each had its own clocks,
// and a push may be part of some of the new shard's elements and not of others. The push must not be applied
// twice to any element, so a push that any old shard has counts as applied:
//   next_clock   of each worker, the highest that any old shard has of its newest incarnation
//   lost         the clocks from the lowest (0 where an old shard does not know this incarnation) to the
//                highest: some elements may lack them. They count as delivered, and are to be reported
//   batches      the union
//   version      the highest count, so that schedules never go back; Adam's t of some elements is rounded up
//                to it
//   answers      none: they name versions of shards that no longer exist. The workers whose pushes they
//                answer are those of a job that was stopped
// So a push counts at most once everywhere, and a push whose clock is not below next_clock on any shard is
// whole.
v1::ShardState MergeShardStates(const std::vector<v1::ShardState>& old, uint32_t shard, uint32_t num_shards);

}  // namespace weir
