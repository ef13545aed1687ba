#include "ps_server/shard/staged_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

bool Holds(const std::vector<uint32_t>& parts, uint32_t part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

std::string CommittedWithout(uint64_t step, uint32_t part) {
  return absl::StrCat("step ", step, " was committed without part ", part,
                      ", which a shard refused or which came late");
}

// Keeps the rows whose keys `applied` does not have.
void KeepOthers(const v1::AppliedRows& applied, PushedRows::OfTable& rows) {
  size_t kept = 0;
  for (size_t i = 0; i < rows.keys.count; ++i) {
    if (ShardOfKey(rows.keys.keys[i], applied.num_shards()) == applied.shard()) continue;
    rows.keys.keys[kept] = rows.keys.keys[i];
    std::copy_n(rows.gradients.get() + i * rows.dim, rows.dim, rows.gradients.get() + kept * rows.dim);
    ++kept;
  }
  rows.keys.count = kept;
}

}  // namespace

void StagedParts::Stage(const v1::PushRequest& header, Slab gradient, PushedRows rows, std::string refusal,
                        Waiter waiter) {
  Part& part = parts_[header.part()];
  part.gradient = std::move(gradient);
  part.rows = std::move(rows);
  row_bytes_ += part.rows.size();
  part.weight = header.weight() == 0 ? static_cast<double>(header.examples()) : header.weight();
  part.refusal = std::move(refusal);
  part.waiters.push_back(std::move(waiter));
}

absl::Status StagedParts::AddWaiter(uint64_t step, uint32_t part, Waiter waiter) {
  std::vector<Waiter>& waiters = parts_.at(part).waiters;
  if (waiters.size() >= kMaxWaiters) {
    return absl::ResourceExhaustedError(absl::StrCat("part ", part, " of step ", step, " has ", kMaxWaiters,
                                                     " repeats of its push that wait, as many as may"));
  }
  waiters.push_back(std::move(waiter));
  return absl::OkStatus();
}

v1::StepStaged StagedParts::Report(uint64_t step) const {
  v1::StepStaged report;
  report.set_step(step);
  for (const auto& [number, part] : parts_) {
    report.add_parts(number);
    if (part.refusal.empty()) continue;
    report.add_refused_parts(number);
    if (report.reason().empty()) report.set_reason(part.refusal);
  }
  return report;
}

absl::StatusOr<StagedParts::Gradients> StagedParts::GradientsOf(const v1::CommitStep& commit,
                                                                const ConsistencyPolicy& policy) const {
  if (policy.CompleteStep() != commit.step()) {
    const uint64_t open = policy.JoinClock();
    return absl::FailedPreconditionError(open == commit.step() ? "not all of its parts have come"
                                                               : absl::StrCat("the open step is ", open));
  }
  Gradients gradients;
  for (uint32_t number : commit.parts()) {
    const auto part = parts_.find(number);
    if (part == parts_.end() || !part->second.refusal.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("part ", number, part == parts_.end() ? " is not staged here" : " is refused here"));
    }
    gradients.dense.push_back({part->second.gradient.get(), part->second.weight});
    gradients.rows.push_back({&part->second.rows, part->second.weight});
  }
  return gradients;
}

void StagedParts::Commit(
    const v1::CommitStep& commit,
    const std::function<void(const Verdict& verdict, std::vector<Waiter>& waiters)>& answer) {
  std::vector<uint32_t>& committed = commits_[commit.step()];
  committed.assign(commit.parts().begin(), commit.parts().end());
  const std::vector<uint32_t> applied = committed;
  if (commits_.size() > kRecorded) commits_.erase(commits_.begin());
  std::map<uint32_t, Part> parts;
  parts.swap(parts_);
  row_bytes_ = 0;
  for (auto& [number, part] : parts) {
    Verdict verdict;
    if (!Holds(applied, number)) {
      verdict.outcome = v1::REFUSED;
      verdict.reason = part.refusal.empty() ? CommittedWithout(commit.step(), number) : part.refusal;
    }
    answer(verdict, part.waiters);
  }
}

Verdict StagedParts::VerdictAt(uint64_t step, uint32_t part) const {
  const auto commit = commits_.find(step);
  if (commit == commits_.end()) return {v1::STEP_PAST, absl::StrCat("step ", step, " is long past")};
  if (!Holds(commit->second, part)) return {v1::REFUSED, CommittedWithout(step, part)};
  return {};
}

void StagedParts::EndWaiters(const std::function<bool(const Waiter&)>& which,
                             const std::function<void(uint32_t part, const Waiter&)>& answer) {
  for (auto& [number, part] : parts_) {
    EndIf(part.waiters, which, [&, number = number](const Waiter& waiter) { answer(number, waiter); });
  }
}

void StagedParts::ForEachWaiter(const std::function<void(uint32_t part, const Waiter&)>& visit) const {
  for (const auto& [number, part] : parts_) {
    for (const Waiter& waiter : part.waiters) visit(number, waiter);
  }
}

void StagedParts::Save(v1::ShardState& state) const {
  for (const auto& [step, parts] : commits_) {
    v1::CommitStep* commit = state.add_commits();
    commit->set_step(step);
    commit->mutable_parts()->Add(parts.begin(), parts.end());
  }
}

void StagedParts::Restore(const v1::ShardState& state) {
  for (const v1::CommitStep& commit : state.commits()) {
    commits_[commit.step()].assign(commit.parts().begin(), commit.parts().end());
  }
}

void EarlyRows::Begin(uint32_t shard, uint32_t num_shards, const v1::ShardState& state) {
  shard_ = shard;
  num_shards_ = num_shards;
  applied_.assign(state.applied_rows().begin(), state.applied_rows().end());
  taken_ = static_cast<size_t>(std::count_if(applied_.begin(), applied_.end(),
                                             [this](const v1::AppliedRows& rows) { return IsOwn(rows); }));
}

bool EarlyRows::Take(uint32_t part, PushedRows& rows) {
  bool is_new = true;
  for (const v1::AppliedRows& applied : applied_) {
    if (applied.part() != part) continue;
    if (IsOwn(applied)) is_new = false;
    for (PushedRows::OfTable& of : rows.tables) KeepOthers(applied, of);
  }
  if (!is_new) return false;
  v1::AppliedRows& now = applied_.emplace_back();
  now.set_part(part);
  now.set_shard(shard_);
  now.set_num_shards(num_shards_);
  ++taken_;
  return true;
}

void EarlyRows::Commit() {
  applied_.clear();
  taken_ = 0;
}

void EarlyRows::Save(v1::ShardState& state) const {
  state.mutable_applied_rows()->Add(applied_.begin(), applied_.end());
}

}  // namespace weir
