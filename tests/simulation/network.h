#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/simulation/world.h"

namespace weir {

// By the fault's name: "reply lost", "worker crash".
using FaultCounts = std::map<std::string, uint64_t>;

// The probabilities of faults, while faults are on.
struct NetworkFaults {
  // Per message of a stream: the stream breaks before the message. The last messages before it may still
  // arrive, late, even after those of the next stream.
  double stream_break = 0;
  // Per unary call.
  double request_lost = 0, reply_lost = 0, duplicate = 0;
  // Per message: it takes up to half a second longer.
  double delay = 0;
};

class Network;

// An ordered two-way stream between two processes, as gRPC has it over TCP: no message arrives twice or out
// of order on one stream. When the stream breaks, neither end knows how much of what was sent has arrived.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The end that opened it, and the one that accepted it.
  enum End { kOpener = 0, kAcceptor = 1 };

  // Runs `deliver` at the other end.
  void Send(End from, std::function<void()> deliver);
  // The process closes the connection: the other end learns it after all that was sent. This end receives no
  // more.
  void Close(End by, absl::Status why = absl::UnavailableError("the stream was ended"));
  // `told` is called once when the stream has ended without this end's Close(): with the other end's reason,
  // or Unavailable.
  void OnEnd(End end, std::function<void(const absl::Status&)> told) { told_[end] = std::move(told); }
  // From now on the process at this end does not read: nothing is delivered to it, and the other end cannot
  // write. Neither end gets an error, since the connection lives.
  void Stall(End end) { stalled_[end] = true; }
  // Bytes that this end writes do not leave.
  bool full(End from) const { return stalled_[Other(from)]; }
  bool over(End end) const { return over_[end]; }

 private:
  friend class Network;
  struct Message {
    absl::Duration ready;
    std::function<void()> deliver;
  };
  // Per receiving end.
  struct Direction {
    std::deque<Message> queue;
    absl::Duration last_ready;
    bool pumping = false;
  };
  static End Other(End end) { return end == kOpener ? kAcceptor : kOpener; }
  void Pump(End to);
  void SchedulePump(End to, absl::Duration at);
  // Both ends learn it, each in its own time.
  void Break();
  // Of the messages on their way to `to`, a prefix of random length still arrives.
  void Cut(End to);
  void TellSoon(End end, absl::Duration after, absl::Status why);

  Network* network_ = nullptr;
  std::array<World::Node, 2> nodes_{};
  std::array<Direction, 2> directions_;
  std::array<bool, 2> over_{}, stalled_{};
  std::array<std::function<void(const absl::Status&)>, 2> told_;
  bool broken_ = false, spared_ = false;
};

// All links. Each direction between two processes has its own speed and may be cut (a partition).
class Network {
 public:
  Network(World* world, NetworkFaults faults, FaultCounts* counts)
      : world_(world), faults_(faults), counts_(counts) {}
  // Messages on their way hold their streams, which hold the messages.
  ~Network();

  // Random faults end; partitions and slow links stay until they are mended.
  void EndFaults() { on_ = false; }
  bool faults_on() const { return on_; }

  // nullptr: no process listens there. `spared`: no random fault breaks it; planned faults do.
  std::shared_ptr<Connection> Connect(World::Node from, World::Node to, bool spared = false);

  // A unary call. `serve` runs at `to`, perhaps twice; `gone` runs there if the caller is gone before the
  // answer. `done` runs once at `from`: with the answer, or Unavailable.
  template <typename Reply>
  void Call(World::Node from, World::Node to,
            std::function<void(std::function<void(absl::StatusOr<Reply>)>)> serve, std::function<void()> gone,
            std::function<void(absl::StatusOr<Reply>)> done) {
    struct State {
      bool over = false, answered = false, served = false;
    };
    auto state = std::make_shared<State>();
    const uint64_t caller = world_->pid(from);
    const auto finish = [this, from, caller, state, done](absl::Duration after, absl::StatusOr<Reply> reply) {
      if (state->over || world_->pid(from) != caller) return;
      world_->After(from, after, [state, done, reply = std::move(reply)]() mutable {
        if (std::exchange(state->over, true)) return;
        done(std::move(reply));
      });
    };
    const auto lost = [this, to, state, finish, gone](const char* what) {
      finish(world_->Between(absl::Milliseconds(1), absl::Milliseconds(200)), absl::UnavailableError(what));
      if (gone == nullptr || !world_->running(to)) return;
      world_->After(to, world_->Between(absl::Milliseconds(1), absl::Milliseconds(400)), [state, gone] {
        if (state->served && !state->answered) gone();
      });
    };
    if (!world_->running(to)) return finish(Latency(from, to), absl::UnavailableError("connection refused"));
    const bool lose_request = Strikes(faults_.request_lost, "request lost");
    const bool lose_reply = !lose_request && Strikes(faults_.reply_lost, "reply lost");
    if (lose_request) return lost("the request was lost");
    // Pings notice silence, as gRPC's keepalive does.
    world_->After(from, kSilence, [this, from, to, state, lost] {
      if (!state->over && (Blocked(from, to) || Blocked(to, from) || !world_->running(to))) {
        lost("the connection is silent");
      }
    });
    const auto arrive = [this, from, to, state, serve, finish, lost, lose_reply](bool first) {
      if (first) state->served = true;
      const uint64_t server = world_->pid(to);
      serve([this, from, to, server, state, finish, lost, lose_reply, first](absl::StatusOr<Reply> reply) {
        if (!first || world_->pid(to) != server || std::exchange(state->answered, true)) return;
        if (lose_reply) return lost("the reply was lost");
        Route(to, from, Latency(to, from), [state, finish, reply = std::move(reply)]() mutable {
          finish(absl::ZeroDuration(), std::move(reply));
        });
      });
    };
    Route(from, to, Latency(from, to), [arrive] { arrive(true); });
    if (Strikes(faults_.duplicate, "request duplicated")) {
      Route(from, to, Latency(from, to) + world_->Between(absl::ZeroDuration(), absl::Milliseconds(300)),
            [arrive] { arrive(false); });
    }
    // A process that dies ends its calls.
    calls_.push_back(
        {from, to, [state] { return state->over; },
         [this, to, state, gone] {
           if (gone == nullptr || !world_->running(to)) return;
           world_->After(to, world_->Between(absl::Milliseconds(1), absl::Milliseconds(20)), [state, gone] {
             if (state->served && !state->answered) gone();
           });
         },
         [finish] { finish(absl::Milliseconds(1), absl::UnavailableError("connection reset")); }});
    if (calls_.size() >= 2 * calls_kept_) ForgetEndedCalls();
  }

  // The process has died (World::Kill() comes next): its streams end, and its callers learn it. `orderly`:
  // the process exits by itself, and what it has sent arrives.
  void OnKill(World::Node node, bool orderly = false);

  // The process is no longer reachable: its callers, and processes that have opened a stream to it, learn
  // that it is gone. It continues, and so do the streams that it has opened.
  void CutOff(World::Node node);

  void Block(World::Node from, World::Node to, bool blocked);
  bool Blocked(World::Node from, World::Node to) const { return blocked_.count({from, to}) > 0; }
  // Messages take this much longer.
  void Slow(World::Node from, World::Node to, absl::Duration by);
  // Breaks every stream between the two.
  void BreakStreams(World::Node a, World::Node b);
  uint64_t messages() const { return messages_; }

 private:
  friend class Connection;
  static constexpr absl::Duration kSilence = absl::Seconds(1);

  bool Strikes(double probability, const char* what) {
    if (!on_ || probability == 0 || !world_->Chance(probability)) return false;
    ++(*counts_)[what];
    return true;
  }
  absl::Duration Latency(World::Node from, World::Node to, bool spared = false);
  // Runs `deliver` at `to` after `delay`, or as soon after as the link is free. `to` must run.
  void Route(World::Node from, World::Node to, absl::Duration delay, std::function<void()> deliver);

  World* const world_;
  const NetworkFaults faults_;
  FaultCounts* const counts_;
  bool on_ = true;
  uint64_t messages_ = 0;
  std::set<std::pair<World::Node, World::Node>> blocked_;
  std::map<std::pair<World::Node, World::Node>, absl::Duration> slow_;
  // Connections between living processes, and all connections ever made.
  std::vector<std::weak_ptr<Connection>> connections_, made_;
  struct OpenCall {
    World::Node from, to;
    std::function<bool()> over;
    // One of the two processes has died.
    std::function<void()> caller_died, server_died;
  };
  void ForgetEndedCalls();
  std::vector<OpenCall> calls_;
  size_t calls_kept_ = 64;
};

}  // namespace weir
