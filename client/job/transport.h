#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/exchange/event_loop.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_set.h"
#include "client/job/coordinator_channel.h"
#include "common/codec/wire_codec.h"

namespace weir {

// How a client reaches a job. The gRPC transport is client/grpc/grpc_transport.h; the simulation has its own.
// Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Lives as long as it is held.
  virtual std::shared_ptr<EventLoop> loop() = 0;
  // An unguessable number, for v1.Caller.instance.
  virtual uint64_t NewInstance() = 0;
  // A channel to the coordinator at this address, which need not be there yet. `attempt`: how long an attempt
  // to connect may take; by default as long as suits cluster.server_wait_seconds.
  virtual std::unique_ptr<CoordinatorChannel> OpenCoordinator(
      const std::string& address, std::optional<std::chrono::nanoseconds> attempt) = 0;
  // A channel to the shard, which has this many elements.
  virtual std::unique_ptr<ShardChannel> OpenShard(uint32_t shard, const std::string& address,
                                                  int64_t elements) = 0;

  // WireOptions::chunk_unit.
  virtual int64_t chunk_unit() const { return kChunkUnit; }
  // Gets what shards answer to the client, unless the client keeps a history; outlives the client. nullptr:
  // none.
  virtual ShardSet::Observer* observer() { return nullptr; }
};

}  // namespace weir
