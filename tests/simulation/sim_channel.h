#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/exchange/shard_channel.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_event_loop.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/site.h"

namespace weir {

class SimDataStream;

// The streams of one program's client to one shard, which may stay longer than its channel.
struct SimShardStreams {
  // From now on none is read.
  void Hang();
  // The process has died: they end.
  void Die();

  Site* const site;
  const World::Node node;
  const uint32_t shard;
  const std::shared_ptr<SimEventLoop> loop;
  std::vector<std::shared_ptr<SimDataStream>> open;
  bool hangs = false;
};

// Opens streams to a shard over the simulated network. Chance sends some pushes twice, the copy on a stream
// of its own and late. What workers are answered goes to the log as it arrives, whatever the client makes of
// it.
class SimShardChannel final : public ShardChannel {
 public:
  explicit SimShardChannel(std::shared_ptr<SimShardStreams> streams) : streams_(std::move(streams)) {}

  std::string name() const override;
  absl::Status Connect(std::chrono::steady_clock::time_point, const std::string&) override {
    return absl::OkStatus();
  }
  bool MoveTo(const std::string&) override { return false; }
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) override;

 private:
  const std::shared_ptr<SimShardStreams> streams_;
};

}  // namespace weir
