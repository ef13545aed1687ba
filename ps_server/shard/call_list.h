#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace weir {

// Waiting calls in the order of their turns, and by their workers, so that what one worker does need not look
// at the calls of all. `Call` has worker() and `turn`, a number of its own.
template <typename Call>
class CallList {
 public:
  void Add(Call call) {
    by_worker_.emplace(call.worker(), call.turn);
    const uint64_t turn = call.turn;
    by_turn_.emplace(turn, std::move(call));
  }

  bool empty() const { return by_turn_.empty(); }
  size_t size() const { return by_turn_.size(); }
  size_t SizeOf(uint32_t worker) const { return TurnsOf(worker).size(); }
  // The call whose turn is next; not of an empty list.
  const Call& front() const { return by_turn_.begin()->second; }
  const std::map<uint64_t, Call>& by_turn() const { return by_turn_; }
  std::vector<uint64_t> Turns() const {
    std::vector<uint64_t> turns;
    turns.reserve(by_turn_.size());
    for (const auto& [turn, call] : by_turn_) turns.push_back(turn);
    return turns;
  }
  std::vector<uint64_t> TurnsOf(uint32_t worker) const {
    std::vector<uint64_t> turns;
    for (auto at = by_worker_.lower_bound({worker, 0}); at != by_worker_.end() && at->first == worker; ++at) {
      turns.push_back(at->second);
    }
    return turns;
  }

  // Null: no call has this turn. Valid until the call is taken.
  const Call* Find(uint64_t turn) const {
    const auto at = by_turn_.find(turn);
    return at == by_turn_.end() ? nullptr : &at->second;
  }
  // Takes a call off the list.
  Call Take(uint64_t turn) {
    const auto at = by_turn_.find(turn);
    Call call = std::move(at->second);
    by_turn_.erase(at);
    by_worker_.erase({call.worker(), turn});
    return call;
  }

 private:
  std::map<uint64_t, Call> by_turn_;
  // Workers and turns.
  std::set<std::pair<uint32_t, uint64_t>> by_worker_;
};

}  // namespace weir
