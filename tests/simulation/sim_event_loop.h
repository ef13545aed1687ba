#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "client/exchange/shard_channel.h"
#include "tests/simulation/world.h"

namespace weir {

// The event loop of one program, under the virtual clock. When the program's process has died, nothing that
// the program does reaches the world any more, and the program runs to its end at once. RunToEnd() has a
// clock of its own, which jumps from timer to timer.
class SimEventLoop final : public EventLoop {
 public:
  SimEventLoop(World* world, World::Node node)
      : world_(world), node_(node), awake_(this, true), real_(this, false) {}

  void Post(absl::AnyInvocable<void()> task) override;
  Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) override;
  Timer After(absl::Duration wait, absl::AnyInvocable<void()> then) {
    return RunAfter(absl::ToChronoNanoseconds(wait), std::move(then));
  }
  void Cancel(const Timer& timer) override { timers_.erase(timer.second); }
  const Clock& awake() const override { return awake_; }
  const Clock& real() const override { return real_; }
  uint32_t Random() override { return world_->Below(UINT32_MAX); }

  // The process has died.
  void Die() { dead_ = true; }
  bool dead() const { return dead_; }
  // Runs tasks and timers until `done`. Only after Die().
  void RunToEnd(const std::function<bool()>& done);

 private:
  class Time final : public Clock {
   public:
    Time(const SimEventLoop* loop, bool awake) : loop_(loop), awake_(awake) {}
    absl::Time Now() const override {
      const absl::Duration away = awake_ ? loop_->world_->paused_for(loop_->node_) : absl::ZeroDuration();
      return loop_->world_->Now() + loop_->leapt_ - away;
    }

   private:
    const SimEventLoop* const loop_;
    const bool awake_;
  };
  struct Pending {
    absl::Time at;
    absl::AnyInvocable<void()> then;
  };
  void RunFirst();
  void RunTimer(uint64_t number);

  World* const world_;
  const World::Node node_;
  const Time awake_, real_;
  std::deque<absl::AnyInvocable<void()>> tasks_;
  std::map<uint64_t, Pending> timers_;
  uint64_t next_timer_ = 0;
  bool dead_ = false;
  absl::Duration leapt_;
};

}  // namespace weir
