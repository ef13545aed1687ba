#include <algorithm>
#include <map>

#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

// The common part of bounded and async: each worker's pushes are applied as they come, in the order of its
// clocks. The two modes differ in when a pull may be answered.
class ApplyOnArrival : public ConsistencyPolicy {
 public:
  void Restore(uint64_t /*version*/, absl::Span<const WorkerRecord> records) override {
    for (const WorkerRecord& record : records) Set(entries_[record.worker], record.clock, record.counts);
  }

  std::vector<WorkerRecord> Records() const override {
    std::vector<WorkerRecord> out;
    for (const auto& [worker, entry] : entries_) out.push_back({worker, entry.clock, entry.counts});
    return out;
  }

  void Admit(uint32_t worker, uint64_t clock) override {
    Entry& entry = entries_[worker];
    Set(entry, std::max(entry.clock, clock), true);
  }

  void Remove(uint32_t worker) override {
    auto it = entries_.find(worker);
    if (it != entries_.end()) Set(it->second, it->second.clock, false);
  }

  void Forget(uint32_t worker) override {
    Remove(worker);
    entries_.erase(worker);
  }

  uint64_t JoinClock() const override {
    if (slowest().has_value()) return *slowest();
    uint64_t highest = 0;
    for (const auto& [worker, entry] : entries_) highest = std::max(highest, entry.clock);
    return highest;
  }

  PushDecision OnPush(const PushKey& push) const override {
    if (push.part != 0) return PushDecision::kInvalid;
    const uint64_t next = clock(push.worker);
    if (push.clock == next) return PushDecision::kApply;
    if (push.clock < next) return PushDecision::kRepeat;
    return push.clock - next <= kHoldWindow ? PushDecision::kHold : PushDecision::kInvalid;
  }

  void Complete(const PushKey& push) override {
    Entry& entry = entries_[push.worker];
    Set(entry, entry.clock + 1, entry.counts);
  }

  uint64_t Skip(uint32_t worker, uint64_t clock) override {
    Entry& entry = entries_[worker];
    const uint64_t before = entry.clock;
    Set(entry, std::max(before, clock), entry.counts);
    return before;
  }

  std::vector<WorkerClockValue> Clocks() const override {
    std::vector<WorkerClockValue> out;
    for (const auto& [worker, entry] : entries_) {
      if (entry.counts) out.push_back({worker, entry.clock});
    }
    return out;
  }

 protected:
  struct Entry {
    uint64_t clock = 0;
    bool counts = false;
  };
  // clock_k(w); 0 for a worker that was never admitted.
  uint64_t clock(uint32_t worker) const {
    const auto it = entries_.find(worker);
    return it == entries_.end() ? 0 : it->second.clock;
  }
  // The entries of all workers that were ever admitted. Bounded by the ranks of the job.
  const std::map<uint32_t, Entry>& entries() const { return entries_; }
  // The lowest clock of the workers that count; nullopt: none counts.
  std::optional<uint64_t> slowest() const {
    return clocks_.empty() ? std::nullopt : std::make_optional(clocks_.begin()->first);
  }

 private:
  // Makes every change of an entry.
  void Set(Entry& entry, uint64_t clock, bool counts) {
    if (entry.counts) {
      const auto at = clocks_.find(entry.clock);
      if (--at->second == 0) clocks_.erase(at);
    }
    if (counts) ++clocks_[clock];
    entry = {clock, counts};
  }

  std::map<uint32_t, Entry> entries_;
  // The number of counting workers at each clock, so that frequent pushes and pulls need not iterate over all
  // workers.
  std::map<uint64_t, uint32_t> clocks_;
};

class BoundedPolicy final : public ApplyOnArrival {
 public:
  BoundedPolicy(uint64_t staleness, bool prefetch)
      : staleness_(staleness), own_staleness_(prefetch ? staleness : 0) {}

  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    return HasOwn(worker, clock) && HasOthers(clock) ? PullDecision::kReady : PullDecision::kWait;
  }

  std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const override {
    std::vector<uint32_t> slow;
    if (HasOthers(clock)) {
      if (!HasOwn(worker, clock)) slow.push_back(worker);
      return slow;
    }
    for (const auto& [other, entry] : entries()) {
      const uint64_t allowance = other == worker ? own_staleness_ : staleness_;
      if ((entry.counts || other == worker) && entry.clock + allowance < clock) slow.push_back(other);
    }
    return slow;
  }

 private:
  // Adds to the worker's clock, because clock - allowance could go below zero. A pull waits for the worker's
  // own pushes even if the worker does not count.
  bool HasOwn(uint32_t worker, uint64_t clock) const {
    const auto own = entries().find(worker);
    return own == entries().end() || own->second.clock + own_staleness_ >= clock;
  }
  // No worker that counts is too far behind.
  bool HasOthers(uint64_t clock) const { return !slowest().has_value() || *slowest() + staleness_ >= clock; }

  const uint64_t staleness_, own_staleness_;
};

class AsyncPolicy final : public ApplyOnArrival {
 public:
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    return this->clock(worker) >= clock ? PullDecision::kReady : PullDecision::kWait;
  }

  std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const override {
    if (OnPull(worker, clock) == PullDecision::kReady) return {};
    return {worker};
  }
};

}  // namespace

std::unique_ptr<ConsistencyPolicy> MakeBoundedPolicy(uint64_t staleness, bool prefetch) {
  return std::make_unique<BoundedPolicy>(staleness, prefetch);
}

std::unique_ptr<ConsistencyPolicy> MakeAsyncPolicy() { return std::make_unique<AsyncPolicy>(); }

}  // namespace weir
