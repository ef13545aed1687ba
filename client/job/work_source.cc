#include "client/job/work_source.h"

#include <algorithm>
#include <utility>

#include "common/protocol/part_assignment.h"

namespace weir {

Work JobLength::Batch(uint64_t batch) const {
  Work work;
  work.batch = batch;
  work.first_example = batch * batch_size;
  work.examples_left = total_examples - work.first_example;
  work.examples = std::min(batch_size, work.examples_left);
  return work;
}

SyncWorkSource::SyncWorkSource(const JobLength& length, uint32_t parts, uint64_t total_steps, uint32_t worker,
                               uint64_t incarnation, uint64_t open_step)
    : length_(length),
      parts_(parts),
      total_steps_(total_steps),
      worker_(worker),
      incarnation_(incarnation),
      open_step_(open_step) {}

void SyncWorkSource::SetMembers(std::vector<Member> members) { members_ = std::move(members); }

void SyncWorkSource::OpenStep(uint64_t step) {
  if (step <= open_step_) return;
  open_step_ = step;
  given_.clear();
}

std::optional<uint32_t> SyncWorkSource::FindPart(uint32_t part) const {
  if (done()) return std::nullopt;
  size_t live = 0;
  std::optional<size_t> own;
  for (const Member& member : members_) {
    if (member.start_clock > open_step_) continue;
    if (member.worker == worker_ && member.incarnation == incarnation_) own = live;
    ++live;
  }
  if (!own.has_value()) return std::nullopt;
  for (; part < PartsOf(open_step_, parts_, length_.total_batches); ++part) {
    if (OwnerOfPart(part, live) == *own && given_.count(part) == 0) return part;
  }
  return std::nullopt;
}

std::optional<Work> SyncWorkSource::Next() {
  const std::optional<uint32_t> part = FindPart(0);
  if (!part.has_value()) return std::nullopt;
  given_.insert(*part);
  Work work = length_.Batch(BatchOf(open_step_, *part, parts_));
  work.clock = open_step_;
  work.part = *part;
  work.last_of_clock = !FindPart(*part + 1).has_value();
  return work;
}

RangeWorkSource::RangeWorkSource(const JobLength& length, uint64_t start_clock)
    : length_(length), next_clock_(start_clock) {}

bool RangeWorkSource::AddRange(uint64_t id, uint64_t first_batch, uint64_t batches) {
  if (batches == 0 || first_batch >= length_.total_batches || batches > length_.total_batches - first_batch) {
    return false;
  }
  return ranges_.emplace(id, Range{first_batch, first_batch + batches, batches}).second;
}

void RangeWorkSource::RaiseClock(uint64_t clock) { next_clock_ = std::max(next_clock_, clock); }

std::optional<Work> RangeWorkSource::Next() {
  for (auto& [id, range] : ranges_) {
    if (range.next_batch == range.end_batch) continue;
    Work work = length_.Batch(range.next_batch++);
    work.clock = next_clock_++;
    outstanding_.emplace(work.clock, id);
    return work;
  }
  return std::nullopt;
}

void RangeWorkSource::Acknowledge(uint64_t clock) {
  const auto found = outstanding_.find(clock);
  if (found == outstanding_.end()) return;
  --ranges_.at(found->second).unacknowledged;
  outstanding_.erase(found);
}

std::vector<uint64_t> RangeWorkSource::CompletedRanges() const {
  std::vector<uint64_t> ids;
  for (const auto& [id, range] : ranges_) {
    if (range.unacknowledged == 0) ids.push_back(id);
  }
  return ids;
}

void RangeWorkSource::Reported(const std::vector<uint64_t>& ranges) {
  for (uint64_t id : ranges) ranges_.erase(id);
}

}  // namespace weir
