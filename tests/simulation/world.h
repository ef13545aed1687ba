#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <queue>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/system/clock.h"

namespace weir {

// The virtual machine room: time, chance, and the processes that live in it. Everything that happens is an
// event of one queue, ordered by its time and then by its number; chance comes from one stream of the seed.
// So one seed is one run, and equal hashes of the trace show that two runs were the same.
//
// An event belongs to a process (a node). An event of a process that has died since is dropped; an event of a
// paused process happens when the process resumes. Not thread-safe: all runs on the thread of Run().
class World final : public Clock {
 public:
  using Node = uint32_t;
  using Event = std::function<void()>;

  // `verbose`: the trace goes to standard output, too.
  World(uint64_t seed, bool verbose) : random_(RandomKey(seed, "world"), 0), verbose_(verbose) {}

  absl::Time Now() const override { return absl::UnixEpoch() + absl::Hours(1) + elapsed(); }
  absl::Duration elapsed() const { return absl::Nanoseconds(now_); }

  // ---- chance

  uint32_t Below(uint32_t bound) { return random_.NextBelow(bound); }
  bool Chance(double probability) { return random_.Next() < probability * 4294967296.0; }
  // Uniform, in whole microseconds.
  absl::Duration Between(absl::Duration least, absl::Duration most);

  // ---- processes

  // Adds a process that does not run yet.
  Node AddNode(std::string name);
  const std::string& name(Node node) const { return nodes_[node].name; }
  void Start(Node node);
  // Drops the process's pending events at once, with all that they hold.
  void Kill(Node node);
  bool running(Node node) const { return nodes_[node].running; }
  // The number of the process: another one after every start and every death.
  uint64_t pid(Node node) const { return nodes_[node].pid; }
  void Pause(Node node);
  void Resume(Node node);
  // The process is dying in the midst of an event: nothing leaves it any more.
  void Silence(Node node) { nodes_[node].silent = true; }
  bool silent(Node node) const { return nodes_[node].silent; }
  bool paused(Node node) const { return nodes_[node].paused; }
  // In all.
  absl::Duration paused_for(Node node) const { return nodes_[node].paused_for; }

  // ---- events

  // An event of a process in its present incarnation; `node` must run.
  void After(Node node, absl::Duration delay, Event event) {
    Push(now_ + absl::ToInt64Nanoseconds(delay), node, nodes_[node].pid, std::move(event));
  }
  // An event of the world itself.
  void After(absl::Duration delay, Event event) {
    Push(now_ + absl::ToInt64Nanoseconds(delay), kWorld, 0, std::move(event));
  }

  // The node whose event runs; kWorld: none.
  Node current() const { return current_; }

  // Runs until `done`, or nothing is left to happen, or the time is up. Returns whether `done`. `each` runs
  // after every event.
  bool Run(absl::Duration until, const std::function<bool()>& done, const Event& each);
  uint64_t events() const { return events_; }

  static constexpr Node kWorld = UINT32_MAX;

  // ---- trace

  void Trace(absl::string_view what, std::initializer_list<uint64_t> values);
  uint64_t trace_hash() const { return hash_; }

 private:
  struct NodeState {
    std::string name;
    bool running = false, paused = false, silent = false;
    uint64_t pid = 0;
    absl::Duration paused_at, paused_for;
    // Events that came while it was paused.
    std::deque<Event> backlog;
  };
  struct Entry {
    int64_t time;
    uint64_t number;
    Node node;
    uint64_t pid;
    Event event;
    bool operator<(const Entry& other) const {  // the queue's top is the largest
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  void Push(int64_t time, Node node, uint64_t pid, Event event);

  RandomStream random_;
  const bool verbose_;
  int64_t now_ = 0;  // ns
  Node current_ = kWorld;
  uint64_t number_ = 0, events_ = 0;
  std::vector<Entry> queue_;  // a heap
  std::vector<NodeState> nodes_;
  uint64_t hash_ = 14695981039346656037u;  // FNV-1a
};

}  // namespace weir
