#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_set.h"
#include "client/job/transport.h"
#include "client/types.h"
#include "common/model/model_spec.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// Makes this process a member of the job, and waits until the job may start, at most cluster.start_seconds.
// Logs what it waits for after 10 seconds, and every 10 seconds from then on. `again`, `job`: used instead of
// those in `options`. `instance`: of this process, for the request.
//
// Errors are the coordinator's. Unavailable, DeadlineExceeded: the time has passed. FailedPrecondition,
// Internal: this client cannot work with the coordinator's reply.
//
// Not on the transport's loop.
absl::StatusOr<v1::JoinReply> JoinJob(const ClientOptions& options, bool again, uint64_t job,
                                      uint64_t instance, const ModelSpec& model, const v1::JobConfig& config,
                                      Transport& transport);

// How a client reaches the job.
struct JobChannels {
  std::shared_ptr<EventLoop> loop;
  std::unique_ptr<CoordinatorChannel> coordinator;
  // By shard.
  std::vector<std::unique_ptr<ShardChannel>> shards;
  // Where the coordinator reaches the shards. May be empty.
  std::vector<std::string> otherwise;
  // WireOptions::chunk_unit.
  int64_t chunk_unit = kChunkUnit;
  // Gets what shards answer; outlives the client. nullptr: none. Not used if the client keeps a history.
  ShardSet::Observer* observer = nullptr;
};

// Opens the channels of a member whom this reply has let in. Connects with no shard.
JobChannels OpenChannels(const ClientOptions& options, const ModelSpec& model, const v1::JoinReply& reply,
                         Transport& transport);

}  // namespace weir
