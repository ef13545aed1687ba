#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/exchange/event_loop.h"
#include "client/exchange/shard_channel.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/site.h"

namespace weir {

// What the shipped client (client/exchange/) runs on in the simulation: its event loop, and its way to a
// shard.

// The event loop of one member of the job, under the virtual clock.
class SimEventLoop final : public EventLoop {
 public:
  SimEventLoop(World* world, World::Node node) : world_(world), awake_(world, node), tasks_(world, node) {}

  void Post(absl::AnyInvocable<void()> task) override { tasks_.Post(std::move(task)); }
  Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) override;
  void Cancel(const Timer& timer) override { timers_.erase(timer.second); }
  const Clock& awake() const override { return awake_; }
  const Clock& real() const override { return *world_; }
  uint32_t Random() override { return world_->Below(UINT32_MAX); }

  // Runs what was posted, at once, until nothing is left, and drops the timers: of a member that is no more.
  void Drain();

 private:
  class AwakeTime final : public Clock {
   public:
    AwakeTime(World* world, World::Node node) : world_(world), node_(node) {}
    absl::Time Now() const override { return world_->Now() - world_->paused_for(node_); }
    World::Node node() const { return node_; }

   private:
    World* const world_;
    const World::Node node_;
  };

  World* const world_;
  const AwakeTime awake_;
  SimLoop tasks_;
  std::map<uint64_t, absl::AnyInvocable<void()>> timers_;
  uint64_t next_timer_ = 0;
};

class SimDataStream;

// Opens streams to a shard over the simulated network. Chance sends some pushes twice, the copy on a stream
// of its own and late. What workers are answered goes to the log as it arrives, whatever the client makes of
// it.
class SimShardChannel final : public ShardChannel {
 public:
  SimShardChannel(Site* site, World::Node node, uint32_t shard, EventLoop* loop)
      : site_(site), node_(node), shard_(shard), loop_(loop) {}

  std::string name() const override;
  absl::Status Connect(std::chrono::steady_clock::time_point, const std::string&) override {
    return absl::OkStatus();
  }
  bool MoveTo(const std::string&) override { return false; }
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()> gone) override;

  // From now on no stream is read.
  void Hang();
  // The member is no more: its streams are closed, and their users let go without a word.
  void Abort();

 private:
  friend class SimDataStream;

  Site* const site_;
  const World::Node node_;
  const uint32_t shard_;
  EventLoop* const loop_;
  std::vector<std::shared_ptr<SimDataStream>> streams_;
  bool hangs_ = false;
};

}  // namespace weir
