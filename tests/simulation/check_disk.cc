// Checks of the disk's contents: logs, and the owner of the store.
#include <algorithm>
#include <cstring>

#include "tests/simulation/checker.h"

namespace weir {

bool Checker::Replayed(const Restored& restored) const {
  // The newest published version of the shard.
  const std::vector<float> nothing(static_cast<size_t>(ledger_.elements()), 0.0f);
  const std::vector<float>* before = &nothing;
  uint64_t version = 0;
  const auto take = [&](uint64_t other, const Weights& weights) {
    if (other < version || weights == nullptr) return;
    version = other;
    before = weights.get();
  };
  for (const Published& line : log_.published) {
    if (line.shard == restored.shard && line.incarnation < restored.incarnation) take(line.to, line.weights);
  }
  for (const Restored& line : log_.restored) {
    if (line.shard == restored.shard && line.incarnation < restored.incarnation)
      take(line.version, line.weights);
  }
  if (restored.version == version) {
    return std::memcmp(before->data(), restored.weights->data(), before->size() * sizeof(float)) == 0;
  }
  uint64_t changed = 0;
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    const float had = ledger_.CountOf(*before, batch), has = ledger_.CountOf(*restored.weights, batch);
    if (has == had) continue;
    if (had != 0 || !HasOnce(*restored.weights, batch)) return false;
    const auto sent = sent_.find(Who(*restored.weights, batch));
    if (sent == sent_.end() || std::none_of(sent->second.begin(), sent->second.end(),
                                            [&](const PushSent* push) { return push->batch == batch; })) {
      return false;
    }
    ++changed;
  }
  return restored.version == version + changed;
}

void Checker::CheckLogs() {
  if (!plan_.logs()) return;
  for (const Restored& restored : log_.restored) {
    if (restored.weights == nullptr) continue;
    for (const Published& line : log_.published) {
      if (line.shard != restored.shard || line.incarnation >= restored.incarnation ||
          line.to <= restored.version)
        continue;
      Violate(Invariant::kRestored, "ps:", restored.shard, " starts at ", At(restored.at), " with version ",
              restored.version, ", and version ", line.to, " was published at ", At(line.at));
    }
    for (const PushAnswered& push : log_.pushes) {
      if (push.shard != restored.shard || push.reply.outcome() != v1::OK ||
          push.reply.version().incarnation() >= restored.incarnation) {
        continue;
      }
      if (Has(*restored.weights, push.batch) && Who(*restored.weights, push.batch) == push.incarnation) {
        continue;
      }
      Violate(Invariant::kAcknowledged, "ps:", restored.shard, " starts at ", At(restored.at),
              " without the push of batch ", push.batch, " by worker ", push.worker, ", acknowledged at ",
              At(push.at), " in version ", push.reply.version().count());
    }
  }
  // A new worker may skip clocks.
  for (const auto& [shard, lost] : log_.lost) {
    if (lost > log_.joins.size()) {
      Violate(Invariant::kAcknowledged, "ps:", shard, " has a log and declares ", lost, " pushes lost");
    }
  }
}

void Checker::CheckCoordinators() {
  for (const CheckpointSaved& saved : log_.saved) {
    for (const StoreTaken& taken : log_.taken) {
      if (taken.coordinator <= saved.coordinator || taken.at > saved.at) continue;
      // A replaced coordinator's last steps may arrive late; what its successor has found counts.
      if (taken.step.has_value() && *taken.step >= saved.step) continue;
      Violate(Invariant::kReplaced, "coordinator ", saved.coordinator, " has saved step ", saved.step, " at ",
              At(saved.at), "; coordinator ", taken.coordinator, " has had the store since ", At(taken.at),
              taken.step.has_value() ? absl::StrCat(" and has found step ", *taken.step) : "");
    }
  }
  for (const ReplacedEnd& end : log_.replaced) {
    // When the job is over no process is there to tell it, and it can harm nothing; a coordinator that saw
    // the end of the job may end like the job.
    if (end.code == 78 || end.job_over || (end.code == 0 && log_.ended && log_.failure.empty())) continue;
    Violate(Invariant::kReplaced, "a ps:0 that was replaced ended at ", At(end.at), " with ", end.code, ": ",
            end.failure);
  }
}

}  // namespace weir
