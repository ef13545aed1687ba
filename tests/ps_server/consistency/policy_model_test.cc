// Random legal histories, seeded, against reference models. A model keeps the whole log of a run and derives
// the answer from it (which pushes a pull must hold), where the policies keep counters.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/protocol/part_assignment.h"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

constexpr uint32_t kWorkers = 5;
constexpr int kRuns = 16;
constexpr int kEvents = 250;

// bounded and async.
class ArrivalLog {
 public:
  // nullopt: async.
  explicit ArrivalLog(std::optional<uint64_t> bound, bool prefetch = false)
      : bound_(bound), prefetch_(prefetch) {}

  void Admit(uint32_t worker, uint64_t clock) {
    known_.insert(worker);
    live_.insert(worker);
    for (uint64_t c = 0; c < clock; ++c) done_[worker].insert(c);
  }
  void Remove(uint32_t worker) { live_.erase(worker); }
  void Forget(uint32_t worker) {
    live_.erase(worker);
    known_.erase(worker);
    done_.erase(worker);
  }
  void Push(uint32_t worker, uint64_t clock) { done_[worker].insert(clock); }

  bool Has(uint32_t worker, uint64_t clock) const {
    const auto it = done_.find(worker);
    return it != done_.end() && it->second.count(clock) > 0;
  }
  uint64_t Next(uint32_t worker) const {
    uint64_t clock = 0;
    while (Has(worker, clock)) ++clock;
    return clock;
  }
  // A pull at clock c holds every update with clock <= c-s-1 of every live worker, and the worker's own up to
  // c-1, with prefetch up to c-s-1. Returns the workers that lack one of these.
  std::vector<uint32_t> Lacking(uint32_t worker, uint64_t clock) const {
    std::vector<uint32_t> out;
    for (uint32_t other = 0; other < kWorkers; ++other) {
      bool lacks = false;
      for (uint64_t c = 0; c < clock; ++c) {
        const bool needed =
            (other == worker && !prefetch_) ||
            ((other == worker || live_.count(other) > 0) && bound_.has_value() && c + *bound_ + 1 <= clock);
        lacks |= needed && !Has(other, c);
      }
      if (lacks) out.push_back(other);
    }
    return out;
  }
  uint64_t JoinClock() const {
    std::vector<uint64_t> live, all;
    for (uint32_t worker : known_) {
      all.push_back(Next(worker));
      if (live_.count(worker) > 0) live.push_back(Next(worker));
    }
    if (!live.empty()) return *std::min_element(live.begin(), live.end());
    return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
  }
  const std::set<uint32_t>& live() const { return live_; }
  const std::set<uint32_t>& known() const { return known_; }

 private:
  const std::optional<uint64_t> bound_;
  const bool prefetch_;
  std::set<uint32_t> known_, live_;
  std::map<uint32_t, std::set<uint64_t>> done_;
};

// Compares every answer that the policy can give now. Returns the first difference.
std::string Compare(const ConsistencyPolicy& policy, const ArrivalLog& log) {
  if (policy.JoinClock() != log.JoinClock()) return "JoinClock";
  const std::vector<WorkerClockValue> clocks = policy.Clocks();
  if (clocks.size() != log.live().size()) return "Clocks: size";
  auto live = log.live().begin();
  for (const WorkerClockValue& value : clocks) {
    if (value.worker != *live || value.clock != log.Next(*live)) return "Clocks: values";
    ++live;
  }
  for (uint32_t worker : log.known()) {
    const uint64_t next = log.Next(worker);
    for (uint64_t clock = next < 6 ? 0 : next - 6; clock <= next + 6; ++clock) {
      const std::vector<uint32_t> lacking = log.Lacking(worker, clock);
      const std::string at = "worker " + std::to_string(worker) + " clock " + std::to_string(clock);
      if ((policy.OnPull(worker, clock) == PullDecision::kReady) != lacking.empty()) return "OnPull " + at;
      if (policy.OnPull(worker, clock) == PullDecision::kPast) return "past " + at;
      if (policy.WaitingFor(worker, clock) != lacking) return "WaitingFor " + at;
      const PushDecision push = policy.OnPush({worker, clock, 0});
      const PushDecision expected = log.Has(worker, clock) ? PushDecision::kRepeat
                                    : clock == next        ? PushDecision::kApply
                                                           : PushDecision::kHold;
      if (push != expected) return "OnPush " + at;
    }
  }
  return "";
}

void RunArrival(std::optional<uint64_t> bound, uint64_t seed, bool prefetch = false) {
  RandomStream random(RandomKey(seed, "arrival"), bound.value_or(99));
  auto policy = bound.has_value() ? MakeBoundedPolicy(*bound, prefetch) : MakeAsyncPolicy();
  ArrivalLog log(bound, prefetch);
  for (int event = 0; event < kEvents; ++event) {
    const uint32_t worker = random.NextBelow(kWorkers);
    const uint32_t dice = random.NextBelow(20);
    std::string what;
    if (dice < 14 && log.live().count(worker) > 0) {
      const uint64_t clock = log.Next(worker);
      what = "push";
      policy->Complete({worker, clock, 0});
      log.Push(worker, clock);
    } else if (dice < 17) {
      const uint64_t clock = log.JoinClock() + random.NextBelow(3);
      what = "admit";
      policy->Admit(worker, clock);
      log.Admit(worker, clock);
    } else if (dice < 19) {
      what = "remove";
      policy->Remove(worker);
      log.Remove(worker);
    } else {
      what = "forget";
      policy->Forget(worker);
      log.Forget(worker);
    }
    const std::string difference = Compare(*policy, log);
    if (!difference.empty()) {
      CAPTURE(seed, event, what, worker);
      FAIL_CHECK(difference);
      return;
    }
  }
}

TEST_CASE("bounded and async agree with the log of any history") {
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    for (uint64_t s : {0, 1, 3}) RunArrival(s, seed);
    RunArrival(2, seed, /*prefetch=*/true);
    RunArrival(std::nullopt, seed);
  }
  SUCCEED();
}

TEST_CASE(
    "Workers that obey the bound are never further apart than it allows, and somebody can always go on") {
  // A closed loop: pull at the worker's clock, when ready compute, push; in random order, with deaths and
  // joins.
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    const uint64_t s = seed % 4;
    RandomStream random(RandomKey(seed, "closed loop"), s);
    auto policy = MakeBoundedPolicy(s);
    std::map<uint32_t, uint64_t> clock;  // of the live workers
    std::map<uint32_t, bool> pulled;
    for (int event = 0; event < kEvents; ++event) {
      const uint32_t worker = random.NextBelow(kWorkers);
      const uint32_t dice = random.NextBelow(50);
      if (clock.count(worker) == 0) {
        if (dice > 5 && !clock.empty()) continue;
        const uint64_t start = policy->JoinClock();
        policy->Forget(worker);
        policy->Admit(worker, start);
        clock[worker] = start;
        pulled[worker] = false;
      } else if (dice == 0) {
        policy->Remove(worker);
        clock.erase(worker);
        continue;
      } else if (!pulled[worker]) {
        pulled[worker] = policy->OnPull(worker, clock[worker]) == PullDecision::kReady;
        if (pulled[worker]) {
          for (const auto& [other, c] : clock) {
            if (clock[worker] > c + s) {
              CAPTURE(seed, event, s, worker, clock[worker], other, c);
              FAIL("the bound is broken");
            }
          }
        }
      } else {
        policy->Complete({worker, clock[worker], 0});
        ++clock[worker];
        pulled[worker] = false;
      }
      bool anybody = clock.empty();
      for (const auto& [w, c] : clock) anybody |= pulled[w] || policy->OnPull(w, c) == PullDecision::kReady;
      if (!anybody) {
        CAPTURE(seed, event);
        FAIL("everybody waits");
      }
    }
  }
  SUCCEED();
}

TEST_CASE("sync agrees with the log of any history") {
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    RandomStream random(RandomKey(seed, "sync"), 0);
    const uint32_t parts = 1 + random.NextBelow(6);
    const uint64_t batches = 1 + random.NextBelow(60);
    const auto exists = [&](uint64_t step, uint32_t part) {
      return part < parts && step * parts + part < batches;
    };
    auto policy = MakeSyncPolicy(parts, batches);
    std::set<uint32_t> live;
    std::set<std::pair<uint64_t, uint32_t>> arrived;  // (step, part)
    uint64_t committed = 0;
    for (int event = 0; event < kEvents; ++event) {
      const uint32_t worker = random.NextBelow(kWorkers);
      const uint32_t dice = random.NextBelow(10);
      if (dice == 0) {
        policy->Admit(worker, random.NextBelow(9));
        live.insert(worker);
      } else if (dice == 1) {
        random.NextBelow(2) == 0 ? policy->Remove(worker) : policy->Forget(worker);
        live.erase(worker);
      } else if (const uint32_t part = random.NextBelow(parts);
                 exists(committed, part) && arrived.count({committed, part}) == 0) {
        policy->Complete({worker, committed, part});
        arrived.insert({committed, part});
      }

      CAPTURE(seed, event, parts, batches, committed);
      bool complete = exists(committed, 0);
      std::set<uint32_t> owners;
      for (uint32_t part = 0; exists(committed, part); ++part) {
        if (arrived.count({committed, part}) > 0) continue;
        complete = false;
        if (!live.empty()) {
          const std::vector<uint32_t> ranks(live.begin(), live.end());
          owners.insert(ranks[part % ranks.size()]);
        }
      }
      REQUIRE(policy->CompleteStep().has_value() == complete);
      REQUIRE(policy->WaitingFor(worker, committed + 1) ==
              std::vector<uint32_t>(owners.begin(), owners.end()));
      REQUIRE(policy->JoinClock() == committed);
      for (uint64_t step = committed < 2 ? 0 : committed - 2; step <= committed + 3; ++step) {
        const PullDecision pull = policy->OnPull(worker, step);
        REQUIRE(pull == (step < committed    ? PullDecision::kPast
                         : step == committed ? PullDecision::kReady
                                             : PullDecision::kWait));
        for (uint32_t part = 0; part <= parts; ++part) {
          const PushDecision expected = !exists(step, part)               ? PushDecision::kInvalid
                                        : step < committed                ? PushDecision::kRepeat
                                        : arrived.count({step, part}) > 0 ? PushDecision::kRepeat
                                        : step == committed               ? PushDecision::kStage
                                        : step == committed + 1           ? PushDecision::kHold
                                                                          : PushDecision::kInvalid;
          REQUIRE(policy->OnPush({worker, step, part}) == expected);
        }
      }
      if (complete && random.NextBelow(2) == 0) {
        policy->Commit();
        ++committed;
      }
    }
  }
}

}  // namespace
}  // namespace weir
