#include "ps_server/coordinator/job_progress.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/part_assignment.h"

namespace weir {

JobProgress::JobProgress(const v1::JobConfig& config, uint32_t workers, const JobDeclaration& declared,
                         const Checkpoints& checkpoints, const ShardFleet& shards)
    : config_(config),
      mode_(TraitsOf(config)),
      workers_(workers),
      declared_(declared),
      checkpoints_(checkpoints),
      shards_(shards),
      steps_(config.consistency().backup_workers()) {}

void JobProgress::BeginRanges(bool untouched) {
  untouched_ = untouched;
  std::vector<Intervals> holders;
  for (const ShardFleet::Shard& shard : shards_) holders.push_back(shard.batches);
  ranges_.emplace(declared_.size().batches, workers_, HeldByAll(holders));
}

void JobProgress::SetWorkEnd(std::optional<uint64_t> end) {
  if (ranges_.has_value()) ranges_->SetWorkEnd(end.value_or(std::numeric_limits<uint64_t>::max()));
}

uint64_t JobProgress::done() const {
  return mode_.commits_steps ? steps_.committed() : ranges_.has_value() ? ranges_->completed_batches() : 0;
}

bool JobProgress::all_done() const {
  const uint64_t steps = declared_.size().steps;
  return mode_.commits_steps ? steps > 0 && steps_.committed() >= steps
                             : ranges_.has_value() && ranges_->done();
}

bool JobProgress::saved() const {
  if (!checkpoints_.any()) return false;
  return mode_.commits_steps ? checkpoints_.committed_steps() == steps_.committed() : untouched_;
}

uint64_t JobProgress::batches() const {
  const JobSize& size = declared_.size();
  if (mode_.commits_steps) return BatchesIn(steps_.committed(), size.parts, size.batches);
  const uint64_t batch = config_.data().batch_size();
  uint64_t batches = 0;
  // The checkpoint says what was done before this incarnation began, until shard 0 says how much it has
  // applied.
  if (checkpoints_.any()) batches = (checkpoints_.newest()->job().examples() + batch - 1) / batch;
  if (shards_.empty()) return batches;
  uint64_t held_at_start = 0;
  for (const v1::Interval& held : shards_[0].batches) held_at_start += held.end() - held.begin();
  return std::max({batches, held_at_start, shards_[0].stats.pushes_applied()});
}

uint64_t JobProgress::examples() const {
  return std::min(declared_.size().examples, batches() * config_.data().batch_size());
}

uint64_t JobProgress::steps_done() const {
  return mode_.commits_steps ? steps_.committed() : std::min(declared_.size().steps, StepsOf(batches()));
}

uint64_t JobProgress::pushes() const {
  if (shards_.empty()) return 0;
  const v1::ShardStats& stats = shards_[0].stats;
  // The shard's stats are a little old, but the step is the current one.
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
