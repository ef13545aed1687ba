#include "ps_server/consistency/apply_on_arrival.h"

#include <algorithm>

namespace weir {

void ApplyOnArrival::Restore(uint64_t /*version*/, absl::Span<const WorkerRecord> records) {
  for (const WorkerRecord& record : records) Set(entries_[record.worker], record.clock, record.counts);
}

void ApplyOnArrival::Set(Entry& entry, uint64_t clock, bool counts) {
  if (entry.counts) {
    const auto at = clocks_.find(entry.clock);
    if (--at->second == 0) clocks_.erase(at);
  }
  if (counts) ++clocks_[clock];
  entry = {clock, counts};
}

std::vector<WorkerRecord> ApplyOnArrival::Records() const {
  std::vector<WorkerRecord> out;
  for (const auto& [worker, entry] : entries_) out.push_back({worker, entry.clock, entry.counts});
  return out;
}

void ApplyOnArrival::Admit(uint32_t worker, uint64_t clock) {
  Entry& entry = entries_[worker];
  Set(entry, std::max(entry.clock, clock), true);
}

void ApplyOnArrival::Remove(uint32_t worker) {
  auto it = entries_.find(worker);
  if (it != entries_.end()) Set(it->second, it->second.clock, false);
}

void ApplyOnArrival::Forget(uint32_t worker) {
  Remove(worker);
  entries_.erase(worker);
}

uint64_t ApplyOnArrival::JoinClock() const {
  if (slowest().has_value()) return *slowest();
  uint64_t highest = 0;
  for (const auto& [worker, entry] : entries_) highest = std::max(highest, entry.clock);
  return highest;
}

PushDecision ApplyOnArrival::OnPush(const PushKey& push) const {
  if (push.part != 0) return PushDecision::kInvalid;
  const uint64_t next = clock(push.worker);
  if (push.clock == next) return PushDecision::kApply;
  if (push.clock < next) return PushDecision::kRepeat;
  return push.clock - next <= kHoldWindow ? PushDecision::kHold : PushDecision::kInvalid;
}

void ApplyOnArrival::Complete(const PushKey& push) {
  Entry& entry = entries_[push.worker];
  Set(entry, entry.clock + 1, entry.counts);
}

uint64_t ApplyOnArrival::Skip(uint32_t worker, uint64_t clock) {
  Entry& entry = entries_[worker];
  const uint64_t before = entry.clock;
  Set(entry, std::max(before, clock), entry.counts);
  return before;
}

std::vector<WorkerClockValue> ApplyOnArrival::Clocks() const {
  std::vector<WorkerClockValue> out;
  for (const auto& [worker, entry] : entries_) {
    if (entry.counts) out.push_back({worker, entry.clock});
  }
  return out;
}

uint64_t ApplyOnArrival::clock(uint32_t worker) const {
  const auto it = entries_.find(worker);
  return it == entries_.end() ? 0 : it->second.clock;
}

}  // namespace weir
