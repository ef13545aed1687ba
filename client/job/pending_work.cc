#include "client/job/pending_work.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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
  std::vector<uint32_t> shares;
  std::optional<size_t> own;
  for (const Member& member : members_) {
    if (member.start_clock > open_step_) continue;
    if (member.worker == worker_ && member.incarnation == incarnation_) own = shares.size();
    shares.push_back(member.share);
  }
  if (!own.has_value()) return std::nullopt;
  const PartOwners owners(shares, parts_);
  for (; part < PartsOf(open_step_, parts_, length_.total_batches); ++part) {
    if (owners.OwnerOf(part) == *own && given_.count(part) == 0) return part;
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

PendingWork::PendingWork(const ModeTraits& mode, const JobLength& length, const v1::JoinReply& reply)
    : mode_(mode),
      parts_(length, reply.parts(), reply.total_steps(), reply.worker(), reply.incarnation(),
             reply.start_clock()),
      ranges_(length, reply.start_clock()) {
  SetMembers(reply.membership());
}

void PendingWork::Begin(const Call& call) {
  if (call.push.has_value()) {
    ++pushes_out_;
    failed_pushes_.erase(*call.push);
  }
  if (call.pull.has_value()) pulls_out_.insert(*call.pull);
}

void PendingWork::End(const Call& call, const absl::StatusOr<ShardSet::Answers>& answers) {
  if (call.push.has_value()) {
    --pushes_out_;
    // DataLoss: the pull lost weights that had been handed over in part, after its push had taken effect.
    if (answers.ok() || absl::IsDataLoss(answers.status())) {
      ranges_.Acknowledge(call.push->first);
    } else {
      failed_pushes_.emplace(*call.push, answers.status());
    }
  }
  if (call.pull.has_value()) {
    pulls_out_.erase(pulls_out_.find(*call.pull));
    if (call.probe) probe_error_ = answers.status();
  }
  if (!mode_.commits_steps || !answers.ok()) return;
  for (const ShardAnswer& answer : *answers) {
    // The version of either answer is the number of a step that is open.
    if (answer.push.outcome() == v1::OK) OpenStep(answer.push.version().count());
    if (answer.pull.outcome() == v1::OK || answer.pull.outcome() == v1::STEP_PAST) {
      OpenStep(answer.pull.version().count());
    }
  }
}

void PendingWork::FailPush(const Work& work, const absl::Status& why) {
  failed_pushes_.emplace(PushKey(work.clock, work.part), why);
}

bool PendingWork::Done(std::optional<uint64_t> work_end) const {
  return mode_.works_on_parts ? parts_.done() && !work_end.has_value() : ranges_done_;
}

void PendingWork::SetMembers(const v1::Membership& membership) {
  std::vector<SyncWorkSource::Member> members;
  for (const v1::Member& member : membership.members()) {
    members.push_back({member.worker(), member.incarnation(), member.start_clock(), member.share()});
  }
  parts_.SetMembers(std::move(members));
}

PendingWork::NextPart PendingWork::NextOfParts(std::optional<uint64_t> work_end, bool examples_done) {
  const bool held = work_end.has_value() && parts_.open_step() >= *work_end;
  const bool done = examples_done || Done(work_end);
  if (done && pushes_out_ == 0) return {Result(std::nullopt), {}};
  if (std::optional<Work> work; !done && !held && (work = parts_.Next()).has_value()) {
    newest_ = *work;
    return {Result(work), {}};
  }
  if (!probe_error_.ok()) return {std::exchange(probe_error_, absl::OkStatus()), {}};
  // Past steps were made without the failed pushes.
  const auto failed = failed_pushes_.lower_bound({parts_.open_step(), 0});
  if (failed != failed_pushes_.end()) return {failed->second, {}};
  const uint64_t next = parts_.open_step() + 1;
  if (done || held || pulls_out_.lower_bound(next) != pulls_out_.end()) return {};
  return {{}, next};
}

std::optional<PendingWork::Result> PendingWork::NextOfRanges(bool examples_done) {
  if (!failed_pushes_.empty()) return failed_pushes_.begin()->second;
  if (std::optional<Work> work = ranges_.Next(); work.has_value()) {
    newest_ = *work;
    return Result(work);
  }
  if (ranges_.outstanding().empty() && (ranges_done_ || examples_done)) return Result(std::nullopt);
  return std::nullopt;
}

std::vector<uint64_t> PendingWork::BeginTaking() {
  taking_range_ = true;
  return ranges_.CompletedRanges();
}

absl::StatusOr<bool> PendingWork::TakeRange(const v1::NextRangeReply& reply,
                                            const std::vector<uint64_t>& completed) {
  ranges_.Reported(completed);
  ranges_.RaiseClock(reply.clock());
  if (!reply.has_range()) {
    ranges_done_ = reply.done();
    return ranges_done_;
  }
  const v1::Range& range = reply.range();
  if (!ranges_.AddRange(range.id(), range.first_batch(), range.batches())) {
    return absl::InternalError(absl::StrCat("the coordinator handed out range ", range.id(), " (batches ",
                                            range.first_batch(), " + ", range.batches(),
                                            "), which is beyond the job or in work already"));
  }
  return true;
}

}  // namespace weir
