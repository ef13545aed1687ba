#include "ps_server/coordinator/progress/job_progress.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/part_assignment.h"

namespace weir {

std::optional<StepCommitter::Commit> StepCommitter::Ready(uint32_t parts, size_t shards) const {
  if (staged_.size() < shards) return std::nullopt;
  Commit commit;
  std::map<uint32_t, size_t> arrived;
  for (const auto& [shard, staged] : staged_) {
    if (staged.step() != committed_) return std::nullopt;
    for (uint32_t part : staged.parts()) ++arrived[part];
    commit.refused.insert(staged.refused_parts().begin(), staged.refused_parts().end());
    if (commit.reason.empty()) commit.reason = staged.reason();
  }
  std::vector<uint32_t> complete;
  for (const auto& [part, holders] : arrived) {
    if (holders == shards) complete.push_back(part);
  }
  const uint32_t needed = PartsToCommit(parts, backup_workers_);
  if (complete.size() < needed) return std::nullopt;
  commit.step.set_step(committed_);
  for (uint32_t part : complete) {
    if (commit.refused.count(part) > 0) continue;
    if (commit.step.parts_size() < static_cast<int>(needed)) commit.step.add_parts(part);
  }
  return commit;
}

void StepCommitter::Committed(const v1::CommitStep& step) {
  staged_.clear();
  norms_.Forget();
  pushes_[committed_] = static_cast<uint32_t>(step.parts_size());
  ++committed_;
}

uint64_t StepCommitter::PushesSince(uint64_t step) const {
  uint64_t pushes = 0;
  for (auto it = pushes_.lower_bound(step); it != pushes_.end(); ++it) pushes += it->second;
  return pushes;
}

void StepCommitter::GoTo(uint64_t committed) {
  committed_ = committed;
  staged_.clear();
  norms_.Forget();
  pushes_.clear();
}

Intervals HeldByAll(const std::vector<Intervals>& holders) {
  std::map<uint64_t, int64_t> change;  // of the number of holders, from this batch on
  for (const Intervals& intervals : holders) {
    for (const v1::Interval& interval : intervals) {
      if (interval.begin() >= interval.end()) continue;
      ++change[interval.begin()];
      --change[interval.end()];
    }
  }
  Intervals out;
  int64_t count = 0;
  const auto all = static_cast<int64_t>(holders.size());
  for (auto it = change.begin(); it != change.end(); ++it) {
    const bool before = count == all;
    count += it->second;
    const bool after = count == all;
    if (!before && after) out.Add()->set_begin(it->first);
    if (before && !after) out[out.size() - 1].set_end(it->first);
  }
  return out;
}

RangeTable::RangeTable(uint64_t total_batches, uint32_t workers, const Intervals& done)
    : total_batches_(total_batches),
      range_batches_(std::clamp<uint64_t>(total_batches / (16 * uint64_t{workers}), 1, 64)) {
  uint64_t next = 0, left = 0;
  const auto add = [&](uint64_t end) {
    if (next >= end) return;
    fresh_.emplace_back(next, end);
    left += end - next;
  };
  for (const v1::Interval& interval : done) {
    add(std::min(interval.begin(), total_batches));
    next = std::max(next, interval.end());
  }
  add(total_batches);
  completed_batches_ = total_batches - left;
}

std::optional<v1::Range> RangeTable::Take(uint32_t worker) {
  if (const auto held = held_.find(worker); held != held_.end()) return held->second;
  v1::Range range;
  if (!returned_.empty()) {
    range = returned_.begin()->second;
    returned_.erase(returned_.begin());
  } else if (Available()) {
    auto& [begin, end] = fresh_.front();
    range.set_id(begin);
    range.set_first_batch(begin);
    range.set_batches(std::min(range_batches_, std::min(end, work_end_) - begin));
    begin += range.batches();
    if (begin == end) fresh_.pop_front();
  } else {
    return std::nullopt;
  }
  held_[worker] = range;
  return range;
}

bool RangeTable::EndHere() {
  if (fresh_.empty() && returned_.empty()) return false;
  ended_ = true;
  fresh_.clear();
  returned_.clear();
  total_batches_ = completed_batches_;
  for (const auto& [worker, range] : held_) total_batches_ += range.batches();
  return true;
}

void RangeTable::Complete(uint64_t id, uint32_t worker) {
  const auto held = held_.find(worker);
  if (held == held_.end() || held->second.id() != id) return;
  completed_batches_ += held->second.batches();
  held_.erase(held);
}

void RangeTable::Release(uint32_t worker) {
  const auto held = held_.find(worker);
  if (held == held_.end()) return;
  if (ended_) {
    total_batches_ -= held->second.batches();
  } else {
    returned_[held->second.id()] = held->second;
  }
  held_.erase(held);
}

JobProgress::JobProgress(const JobContext& job, const JobDeclaration& declared,
                         const Checkpoints& checkpoints, const ShardFleet& shards)
    : job_(job),
      mode_(TraitsOf(job.config)),
      declared_(declared),
      checkpoints_(checkpoints),
      shards_(shards),
      steps_(job.config.consistency().backup_workers(), StepNorms(job.config)) {}

void JobProgress::BeginRanges(bool untouched) {
  untouched_ = untouched;
  std::vector<Intervals> holders;
  for (const ShardFleet::Shard& shard : shards_) holders.push_back(shard.batches);
  ranges_.emplace(declared_.size().batches, job_.workers, HeldByAll(holders));
}

void JobProgress::SetWorkEnd(std::optional<uint64_t> end) {
  if (ranges_.has_value()) ranges_->SetWorkEnd(end.value_or(std::numeric_limits<uint64_t>::max()));
}

bool JobProgress::EndSoon() {
  if (!mode_.commits_steps) return ranges_.has_value() && ranges_->EndHere();
  if (steps_.committed() + 1 >= declared_.size().steps) return false;
  end_ = steps_.committed() + 1;
  return true;
}

uint64_t JobProgress::done() const {
  return mode_.commits_steps ? steps_.committed() : ranges_.has_value() ? ranges_->completed_batches() : 0;
}

bool JobProgress::all_done() const {
  const uint64_t steps = declared_.size().steps;
  return mode_.commits_steps ? steps > 0 && steps_.committed() >= std::min(steps, end_.value_or(steps))
                             : ranges_.has_value() && ranges_->done();
}

bool JobProgress::saved() const {
  if (!checkpoints_.any()) return false;
  return mode_.commits_steps ? checkpoints_.committed_steps() == steps_.committed() : untouched_;
}

uint64_t JobProgress::batches() const {
  const JobSize& size = declared_.size();
  if (mode_.commits_steps) return BatchesIn(steps_.committed(), size.parts, size.batches);
  const uint64_t batch = ExamplesOfBatch(job_.config);
  uint64_t batches = 0;
  // Until shard 0 says how much it has applied, the checkpoint says what was done before.
  if (checkpoints_.any()) batches = (checkpoints_.newest()->job().examples() + batch - 1) / batch;
  if (shards_.empty()) return batches;
  uint64_t held_at_start = 0;
  for (const v1::Interval& held : shards_[0].batches) held_at_start += held.end() - held.begin();
  return std::max({batches, held_at_start, shards_[0].stats.pushes_applied()});
}

uint64_t JobProgress::examples() const {
  return std::min(declared_.size().examples, batches() * ExamplesOfBatch(job_.config));
}

uint64_t JobProgress::steps_done() const {
  return mode_.commits_steps ? steps_.committed() : std::min(declared_.size().steps, StepsOf(batches()));
}

uint64_t JobProgress::pushes() const {
  if (shards_.empty()) return 0;
  const v1::ShardStats& stats = shards_[0].stats;
  // The shard's stats are a little old, but the steps are counted up to the current one.
  return stats.pushes_applied() + steps_.PushesSince(stats.version().count());
}

uint64_t JobProgress::StepOf(uint64_t version) const {
  return mode_.commits_steps ? version : std::min(declared_.size().steps, StepsOf(version));
}

std::string JobProgress::Text() const {
  const JobSize& size = declared_.size();
  return mode_.commits_steps ? absl::StrCat(done(), " of ", size.steps, " steps")
                             : absl::StrCat(done(), " of ", size.batches, " batches");
}

}  // namespace weir
