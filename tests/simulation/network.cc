#include "tests/simulation/network.h"

#include <algorithm>

namespace weir {
namespace {

// The interval at which a message that cannot get through is retried.
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// A stream whose messages do not get through for this long is given up.
constexpr absl::Duration kKeepalive = absl::Milliseconds(1500);

}  // namespace

// ---- streams

void Connection::Send(End from, std::function<void()> deliver) {
  if (broken_ || over_[from] || network_->world_->silent(nodes_[from])) return;
  const End to = Other(from);
  if (!spared_ &&
      network_->Strikes(network_->faults_.stream_break, from == kOpener ? "request lost" : "reply lost")) {
    return Break();
  }
  ++network_->messages_;
  Direction& way = directions_[to];
  way.last_ready = std::max(
      way.last_ready, network_->world_->elapsed() + network_->Latency(nodes_[from], nodes_[to], spared_));
  way.queue.push_back({way.last_ready, std::move(deliver)});
  if (!way.pumping && !over_[to]) SchedulePump(to, way.last_ready);
}

void Connection::SchedulePump(End to, absl::Duration at) {
  World& world = *network_->world_;
  directions_[to].pumping = true;
  world.After(nodes_[to], std::max(absl::ZeroDuration(), at - world.elapsed()),
              [self = shared_from_this(), to] { self->Pump(to); });
}

void Connection::Pump(End to) {
  Direction& way = directions_[to];
  way.pumping = false;
  if (stalled_[to]) return;
  const absl::Duration now = network_->world_->elapsed();
  while (!over_[to] && !way.queue.empty() && way.queue.front().ready <= now) {
    if (network_->Blocked(nodes_[Other(to)], nodes_[to])) {
      if (!broken_ && now - way.queue.front().ready > kKeepalive) return Break();
      return SchedulePump(to, now + kPoll);
    }
    const Message message = std::move(way.queue.front());
    way.queue.pop_front();
    message.deliver();
  }
  if (over_[to]) {
    way.queue.clear();
  } else if (!way.queue.empty() && !way.pumping) {
    SchedulePump(to, way.queue.front().ready);
  }
}

void Connection::Close(End by, absl::Status why) {
  if (over_[by]) return;
  over_[by] = true;
  directions_[by].queue.clear();
  const End other = Other(by);
  if (broken_ || over_[other]) return;
  broken_ = true;
  Direction& way = directions_[other];
  way.last_ready += network_->Latency(nodes_[by], nodes_[other]);
  TellSoon(other, std::max(absl::ZeroDuration(), way.last_ready - network_->world_->elapsed()),
           std::move(why));
}

void Connection::Cut(End to) {
  World& world = *network_->world_;
  auto& queue = directions_[to].queue;
  queue.resize(queue.empty() ? 0 : world.Below(static_cast<uint32_t>(queue.size() + 1)));
  if (queue.empty() || !world.Chance(0.5)) return;
  const absl::Duration late = world.Between(absl::ZeroDuration(), absl::Milliseconds(300));
  for (Message& message : queue) message.ready += late;
  ++(*network_->counts_)["stream's end comes late"];
}

void Connection::Break() {
  if (broken_) return;
  broken_ = true;
  World& world = *network_->world_;
  for (const End end : {kOpener, kAcceptor}) {
    if (over_[end]) continue;
    Cut(end);
    // Mostly at once; sometimes one end takes long to notice.
    TellSoon(end,
             world.Chance(0.8) ? world.Between(absl::ZeroDuration(), absl::Milliseconds(30))
                               : world.Between(absl::ZeroDuration(), absl::Milliseconds(1500)),
             absl::UnavailableError("its stream broke"));
  }
}

void Connection::TellSoon(End end, absl::Duration after, absl::Status why) {
  World& world = *network_->world_;
  if (!world.running(nodes_[end])) return;
  world.After(nodes_[end], after, [self = shared_from_this(), end, why = std::move(why)] {
    if (self->over_[end]) return;
    self->over_[end] = true;
    self->directions_[end].queue.clear();
    if (self->told_[end]) std::exchange(self->told_[end], nullptr)(why);
  });
}

// ---- the network

Network::~Network() {
  for (const std::weak_ptr<Connection>& weak : made_) {
    const std::shared_ptr<Connection> connection = weak.lock();
    if (connection == nullptr) continue;
    connection->told_ = {};
    connection->directions_ = {};
  }
}

std::shared_ptr<Connection> Network::Connect(World::Node from, World::Node to, bool spared) {
  if (!world_->running(to)) return nullptr;
  auto connection = std::make_shared<Connection>();
  connection->network_ = this;
  connection->nodes_ = {from, to};
  connection->spared_ = spared;
  connections_.push_back(connection);
  made_.push_back(connection);
  return connection;
}

absl::Duration Network::Latency(World::Node from, World::Node to, bool spared) {
  absl::Duration latency = world_->Between(absl::Microseconds(100), absl::Milliseconds(2));
  if (const auto slow = slow_.find({from, to}); slow != slow_.end()) {
    latency += world_->Between(absl::ZeroDuration(), slow->second);
  }
  if (!spared && Strikes(faults_.delay, "message delayed")) {
    latency += world_->Between(absl::Milliseconds(5), absl::Milliseconds(500));
  }
  return latency;
}

void Network::Route(World::Node from, World::Node to, absl::Duration delay, std::function<void()> deliver) {
  if (!world_->running(to) || world_->silent(from)) return;
  ++messages_;
  world_->After(to, delay, [this, from, to, deliver = std::move(deliver)]() mutable {
    if (Blocked(from, to)) return Route(from, to, kPoll, std::move(deliver));
    deliver();
  });
}

void Network::OnKill(World::Node node, bool orderly) {
  std::vector<std::weak_ptr<Connection>> left;
  for (const std::weak_ptr<Connection>& weak : std::exchange(connections_, {})) {
    const std::shared_ptr<Connection> connection = weak.lock();
    if (connection == nullptr) continue;
    const bool opener = connection->nodes_[Connection::kOpener] == node;
    if (!opener && connection->nodes_[Connection::kAcceptor] != node) {
      left.push_back(weak);
      continue;
    }
    const Connection::End end = opener ? Connection::kOpener : Connection::kAcceptor;
    const Connection::End other = Connection::Other(end);
    if (orderly) {
      connection->Close(end);
      continue;
    }
    connection->over_[end] = true;
    connection->told_[end] = nullptr;
    connection->directions_[end].queue.clear();
    if (connection->broken_ || connection->over_[other]) continue;
    connection->broken_ = true;
    connection->Cut(other);
    // A process that dies resets its streams; a machine that dies does not.
    connection->TellSoon(other,
                         world_->Chance(0.8)
                             ? world_->Between(absl::Milliseconds(1), absl::Milliseconds(20))
                             : world_->Between(absl::Milliseconds(500), absl::Milliseconds(2000)),
                         absl::UnavailableError("its process is gone"));
  }
  connections_.insert(connections_.end(), left.begin(), left.end());
  for (OpenCall& call : std::exchange(calls_, {})) {
    if (call.to == node) {
      call.server_died();
    } else if (call.from == node) {
      if (!call.over()) call.caller_died();
    } else {
      calls_.push_back(std::move(call));
    }
  }
}

void Network::CutOff(World::Node node) {
  for (const std::weak_ptr<Connection>& weak : connections_) {
    const std::shared_ptr<Connection> connection = weak.lock();
    if (connection != nullptr && connection->nodes_[Connection::kAcceptor] == node) connection->Break();
  }
  for (OpenCall& call : std::exchange(calls_, {})) {
    if (call.to != node) {
      calls_.push_back(std::move(call));
    } else if (!call.over()) {
      call.server_died();
      call.caller_died();
    }
  }
}

void Network::ForgetEndedCalls() {
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(), [](const OpenCall& call) { return call.over(); }),
               calls_.end());
  calls_kept_ = std::max<size_t>(64, calls_.size());
}

void Network::Block(World::Node from, World::Node to, bool blocked) {
  if (blocked) {
    blocked_.emplace(from, to);
  } else {
    blocked_.erase({from, to});
  }
}

void Network::Slow(World::Node from, World::Node to, absl::Duration by) {
  if (by == absl::ZeroDuration()) {
    slow_.erase({from, to});
  } else {
    slow_[{from, to}] = by;
  }
}

void Network::BreakStreams(World::Node a, World::Node b) {
  for (const std::weak_ptr<Connection>& weak : connections_) {
    const std::shared_ptr<Connection> connection = weak.lock();
    if (connection == nullptr) continue;
    const auto& nodes = connection->nodes_;
    if ((nodes[0] == a && nodes[1] == b) || (nodes[0] == b && nodes[1] == a)) connection->Break();
  }
}

}  // namespace weir
