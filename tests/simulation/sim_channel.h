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

// The streams of one program's client to one shard. They may outlive its channel.
struct SimShardStreams {
  // From now on no stream is read.
  void Hang();
  // The process has died: the streams end.
  void Die();

  Site* const site;
  const World::Node node;
  const uint32_t shard;
  // Where the shard is, as far as the client knows.
  std::string address;
  const std::shared_ptr<SimEventLoop> loop;
  std::vector<std::shared_ptr<SimDataStream>> open;
  bool hangs = false;
  // The highest clock, plus 1, of the pulls that the shard has answered with a version.
  uint64_t answered = 0;
};

// Opens streams to a shard over the simulated network. Some pushes are sent twice at random, the copy late
// and on a stream of its own. Beside some pushes a stray worker, of another job with the same ranks,
// incarnations and clocks, sends a push for the next clock. Answers to workers go to the log as they arrive,
// whatever the client does with them.
class SimShardChannel final : public ShardChannel {
 public:
  explicit SimShardChannel(std::shared_ptr<SimShardStreams> streams)
      : streams_(std::move(streams)), home_(streams_->address) {}

  std::string name() const override;
  // Does not wait: a stream to a shard that is out of reach ends, and the client tries again. The client's
  // addresses and the coordinator's are the same.
  absl::Status Connect(std::chrono::steady_clock::time_point, const std::string&,
                       const std::function<absl::Status()>&) override {
    return absl::OkStatus();
  }
  bool MoveTo(const std::string& address) override;
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) override;

 private:
  const std::shared_ptr<SimShardStreams> streams_;
  const std::string home_;
};

}  // namespace weir
