#include "tests/simulation/sim_event_loop.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace weir {

void SimEventLoop::Post(absl::AnyInvocable<void()> task) {
  tasks_.push_back(std::move(task));
  if (dead_) return;
  world_->After(node_, world_->Between(absl::ZeroDuration(), absl::Microseconds(200)),
                [this] { RunFirst(); });
}

EventLoop::Timer SimEventLoop::RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) {
  const uint64_t number = next_timer_++;
  const absl::Duration length = std::max(absl::ZeroDuration(), absl::FromChrono(wait));
  timers_.emplace(number, Pending{real_.Now() + length, std::move(then)});
  if (!dead_) world_->After(node_, length, [this, number] { RunTimer(number); });
  return {std::chrono::steady_clock::time_point(), number};
}

void SimEventLoop::RunFirst() {
  if (tasks_.empty()) return;
  absl::AnyInvocable<void()> task = std::move(tasks_.front());
  tasks_.pop_front();
  task();
}

void SimEventLoop::RunTimer(uint64_t number) {
  const auto timer = timers_.find(number);
  if (timer == timers_.end()) return;
  absl::AnyInvocable<void()> then = std::move(timer->second.then);
  timers_.erase(timer);
  then();
}

void SimEventLoop::RunToEnd(const std::function<bool()>& done) {
  while (!done()) {
    if (!tasks_.empty()) {
      RunFirst();
      continue;
    }
    const auto first = std::min_element(timers_.begin(), timers_.end(), [](const auto& a, const auto& b) {
      return a.second.at < b.second.at;
    });
    if (first == timers_.end()) {
      std::fprintf(stderr, "%s has died and waits for ever\n", world_->name(node_).c_str());
      std::abort();
    }
    leapt_ += std::max(absl::ZeroDuration(), first->second.at - real_.Now());
    RunTimer(first->first);
  }
  tasks_.clear();
  timers_.clear();
}

}  // namespace weir
