#include "tests/simulation/world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weir {

absl::Duration World::Between(absl::Duration least, absl::Duration most) {
  const auto span = static_cast<uint32_t>(absl::ToInt64Microseconds(most - least));
  return least + absl::Microseconds(span == 0 ? 0 : Below(span + 1));
}

World::Node World::AddNode(std::string name) {
  nodes_.emplace_back().name = std::move(name);
  return static_cast<Node>(nodes_.size() - 1);
}

void World::Start(Node node) {
  nodes_[node].running = true;
  ++nodes_[node].pid;
  Trace("start", {node});
}

void World::Kill(Node node) {
  NodeState& state = nodes_[node];
  state.running = state.paused = state.silent = false;
  ++state.pid;
  // Destroyed last: the destructors of what they hold may add events.
  std::vector<Event> dropped;
  for (Event& event : std::exchange(state.backlog, {})) dropped.push_back(std::move(event));
  for (Entry& entry : queue_) {
    if (entry.node == node) dropped.push_back(std::exchange(entry.event, nullptr));
  }
  Trace("kill", {node});
  dropped.clear();
}

void World::Pause(Node node) {
  if (!std::exchange(nodes_[node].paused, true)) nodes_[node].paused_at = elapsed();
  Trace("pause", {node});
}

void World::Resume(Node node) {
  NodeState& state = nodes_[node];
  if (std::exchange(state.paused, false)) state.paused_for += elapsed() - state.paused_at;
  Trace("resume", {node});
  for (Event& event : std::exchange(state.backlog, {})) Push(now_, node, state.pid, std::move(event));
}

void World::Push(int64_t time, Node node, uint64_t pid, Event event) {
  queue_.push_back({time, number_++, node, pid, std::move(event)});
  std::push_heap(queue_.begin(), queue_.end());
}

bool World::Run(absl::Duration until, const std::function<bool()>& done, const Event& each) {
  const int64_t end = absl::ToInt64Nanoseconds(until);
  while (!done()) {
    if (queue_.empty() || queue_.front().time > end) return false;
    std::pop_heap(queue_.begin(), queue_.end());
    Entry entry = std::move(queue_.back());
    queue_.pop_back();
    // No two events have the same time, so that the times in the log give the order.
    now_ = std::max(now_ + 1, entry.time);
    if (entry.node != kWorld) {
      NodeState& state = nodes_[entry.node];
      if (!state.running || state.pid != entry.pid) continue;
      if (state.paused) {
        state.backlog.push_back(std::move(entry.event));
        continue;
      }
    }
    ++events_;
    current_ = entry.node;
    entry.event();
    entry.event = nullptr;
    current_ = kWorld;
    each();
  }
  return true;
}

void World::Trace(absl::string_view what, std::initializer_list<uint64_t> values) {
  const auto add = [this](uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash_ = (hash_ ^ (value & 0xff)) * 1099511628211u;
  };
  add(static_cast<uint64_t>(now_));
  for (char c : what) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  for (uint64_t value : values) add(value);
  if (!verbose_) return;
  std::printf("%12.6f %.*s", static_cast<double>(now_) * 1e-9, static_cast<int>(what.size()), what.data());
  for (uint64_t value : values) std::printf(" %llu", static_cast<unsigned long long>(value));
  std::printf("\n");
}

}  // namespace weir
