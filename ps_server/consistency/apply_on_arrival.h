#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ps_server/consistency/policy.h"

namespace weir {

// The common part of bounded and async: each worker's pushes are applied as they come, in the order of its
// clocks. The two modes differ in when a pull may be answered.
class ApplyOnArrival : public ConsistencyPolicy {
 public:
  void Restore(uint64_t version, absl::Span<const WorkerRecord> records) override;
  std::vector<WorkerRecord> Records() const override;
  void Admit(uint32_t worker, uint64_t clock) override;
  void Remove(uint32_t worker) override;
  void Forget(uint32_t worker) override;
  uint64_t JoinClock() const override;
  PushDecision OnPush(const PushKey& push) const override;
  void Complete(const PushKey& push) override;
  uint64_t Skip(uint32_t worker, uint64_t clock) override;
  std::vector<WorkerClockValue> Clocks() const override;

 protected:
  struct Entry {
    uint64_t clock = 0;
    bool counts = false;
  };
  // clock_k(w); 0 for a worker that was never admitted.
  uint64_t clock(uint32_t worker) const;
  // The entries of all workers that were ever admitted. Bounded by the ranks of the job.
  const std::map<uint32_t, Entry>& entries() const { return entries_; }
  // The lowest clock of the workers that count; nullopt: none counts.
  std::optional<uint64_t> slowest() const {
    return clocks_.empty() ? std::nullopt : std::make_optional(clocks_.begin()->first);
  }

 private:
  // Makes every change of an entry.
  void Set(Entry& entry, uint64_t clock, bool counts);

  std::map<uint32_t, Entry> entries_;
  // The number of counting workers at each clock, so that frequent pushes and pulls need not iterate over all
  // workers.
  std::map<uint64_t, uint32_t> clocks_;
};

}  // namespace weir
