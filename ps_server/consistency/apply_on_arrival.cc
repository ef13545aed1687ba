#include "ps_server/consistency/apply_on_arrival.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace weir {

void ApplyOnArrival::Restore(uint64_t /*version*/, absl::Span<const WorkerRecord> records) {
  for (const WorkerRecord& record : records) entries_[record.worker] = {record.clock, record.counts};
}

std::vector<WorkerRecord> ApplyOnArrival::Records() const {
  std::vector<WorkerRecord> out;
  for (const auto& [worker, entry] : entries_) out.push_back({worker, entry.clock, entry.counts});
  return out;
}

void ApplyOnArrival::Admit(uint32_t worker, uint64_t clock) {
  Entry& entry = entries_[worker];
  entry.clock = std::max(entry.clock, clock);
  entry.counts = true;
}

void ApplyOnArrival::Remove(uint32_t worker) {
  auto it = entries_.find(worker);
  if (it != entries_.end()) it->second.counts = false;
}

uint64_t ApplyOnArrival::JoinClock() const {
  std::optional<uint64_t> slowest;
  uint64_t highest = 0;
  for (const auto& [worker, entry] : entries_) {
    highest = std::max(highest, entry.clock);
    if (entry.counts) slowest = std::min(slowest.value_or(entry.clock), entry.clock);
  }
  return slowest.value_or(highest);
}

PushDecision ApplyOnArrival::OnPush(const PushKey& push) const {
  if (push.part != 0) return PushDecision::kInvalid;
  const uint64_t next = clock(push.worker);
  if (push.clock == next) return PushDecision::kApply;
  if (push.clock < next) return PushDecision::kRepeat;
  return push.clock - next <= kHoldWindow ? PushDecision::kHold : PushDecision::kInvalid;
}

void ApplyOnArrival::Complete(const PushKey& push) { ++entries_[push.worker].clock; }

uint64_t ApplyOnArrival::Skip(uint32_t worker, uint64_t clock) {
  Entry& entry = entries_[worker];
  return std::exchange(entry.clock, std::max(entry.clock, clock));
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
