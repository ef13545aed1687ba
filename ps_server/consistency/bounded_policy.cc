#include "ps_server/consistency/apply_on_arrival.h"

namespace weir {
namespace {

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

}  // namespace

std::unique_ptr<ConsistencyPolicy> MakeBoundedPolicy(uint64_t staleness, bool prefetch) {
  return std::make_unique<BoundedPolicy>(staleness, prefetch);
}

}  // namespace weir
