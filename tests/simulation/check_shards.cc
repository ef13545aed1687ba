// Checks of what a shard holds, publishes and receives.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "tests/simulation/checker.h"

namespace weir {

void Checker::CheckMemberships() {
  std::map<uint64_t, std::string> epochs;
  std::map<uint32_t, uint64_t> newest;
  for (const Installed& installed : log_.installed) {
    memberships_[{installed.shard, installed.incarnation}].push_back(&installed);
    const uint64_t epoch = installed.membership.epoch();
    if (epoch <= newest[installed.shard]) {
      Violate(Invariant::kEpochs, "ps:", installed.shard, " installed epoch ", epoch, " after ",
              newest[installed.shard]);
    }
    newest[installed.shard] = std::max(newest[installed.shard], epoch);
    const auto [same, added] = epochs.emplace(epoch, installed.membership.SerializeAsString());
    if (!added && same->second != installed.membership.SerializeAsString()) {
      Violate(Invariant::kEpochs, "epoch ", epoch, " is another membership on ps:", installed.shard,
              " than before");
    }
  }
  std::set<uint64_t> incarnations;
  for (const Joined& joined : log_.joins) {
    if (!incarnations.insert(joined.incarnation).second) {
      Violate(Invariant::kEpochs, "incarnation ", joined.incarnation, " was given twice");
    }
  }
}

void Checker::CheckRestored() {
  std::map<uint64_t, std::pair<absl::Duration, uint64_t>> steps;
  for (const Restored& restored : log_.restored) {
    if (restored.weights == nullptr) {
      Violate(Invariant::kRestored, "ps:", restored.shard, " cannot be read after it was installed");
      continue;
    }
    const auto same = [&](const Weights& other) {
      return std::memcmp(other->data(), restored.weights->data(), OfVersion(other->size()) * sizeof(float)) ==
             0;
    };
    bool known = restored.version == 0 && IsInitial(restored.shard, *restored.weights);
    for (const auto* lines : {&log_.published, &log_.published_when_replaced}) {
      known |= std::any_of(lines->begin(), lines->end(), [&](const Published& line) {
        return line.shard == restored.shard && line.to == restored.version && line.at <= restored.at &&
               line.weights != nullptr && same(line.weights);
      });
    }
    known |= plan_.logs() && Replayed(restored);
    CheckEarlyRows(restored.shard, restored.version, *restored.weights);
    if (!known) {
      Violate(Invariant::kRestored, "ps:", restored.shard, " starts at ", At(restored.at), " with version ",
              restored.version, " in bits that it never had");
    }
    for (const CheckpointSaved& saved : log_.saved) {
      // The restoring coordinator may not know yet of a checkpoint that was complete just before.
      if (saved.damaged || saved.at + absl::Milliseconds(500) > restored.at ||
          saved.versions[restored.shard].count() <= restored.version)
        continue;
      Violate(Invariant::kRestored, "ps:", restored.shard, " starts at ", At(restored.at), " with version ",
              restored.version, " though the checkpoint of ", At(saved.at), " holds version ",
              saved.versions[restored.shard].count());
    }
    versions_[{restored.shard, restored.incarnation}][restored.version] = restored.weights;
  }
}

bool Checker::IsInitial(uint32_t shard, const std::vector<float>& weights) {
  const auto are_of = [&](uint32_t rank) {
    std::vector<float> initial = ledger_.InitialValues(rank, shard);
    // The rows are zeros.
    initial.resize(weights.size());
    return std::equal(weights.begin(), weights.begin() + static_cast<int64_t>(OfVersion(weights.size())),
                      initial.begin());
  };
  for (uint32_t rank = 0; rank < plan_.workers.size() && !uploader_.has_value(); ++rank) {
    if (are_of(rank)) uploader_ = rank;
  }
  return uploader_.has_value() && are_of(*uploader_);
}

void Checker::CheckPublications() {
  for (const Published& line : log_.published) {
    const ShardIncarnation shard{line.shard, line.incarnation};
    const std::vector<float>* const before = Find(shard, line.from);
    if (before == nullptr || line.weights == nullptr || line.to <= line.from) {
      Violate(Invariant::kOnce, "ps:", line.shard, " went from version ", line.from, " to ", line.to);
      continue;
    }
    if (sync()) {
      CheckStep(line, *before);
      CheckEarlyRows(line.shard, line.to, *line.weights);
    } else {
      CheckArrivals(line, *before);
    }
    CheckCoded(line, *before);
    versions_[shard][line.to] = line.weights;
  }
}

void Checker::CheckStep(const Published& line, const std::vector<float>& before) {
  const std::vector<float>& after = *line.weights;
  std::set<uint64_t> parts;
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    const float had = ledger_.CountOf(before, batch), has = ledger_.CountOf(after, batch);
    if (Same(had, has)) continue;
    if (batch / ledger_.options().parts != line.from || line.to != line.from + 1 || Has(before, batch)) {
      Violate(Invariant::kOnce, "ps:", line.shard, " changed batch ", batch, " from ", had, " to ", has,
              " in step ", line.from, " -> ", line.to);
    }
    parts.insert(batch);
  }
  // A scale of 4 bits and 1 bit has 8 bits.
  const double excess = ledger_.Excess(line.from, parts) * ledger_.unit();
  const double inexact = ledger_.quantised() ? 0.02 : 1e-3;
  for (uint64_t batch : parts) {
    const double times = (ledger_.CountOf(after, batch) - ledger_.CountOf(before, batch)) / excess;
    if (std::abs(times - 1) > inexact) {
      Violate(Invariant::kOnce, "ps:", line.shard, " counts batch ", batch, " ", times, " times in step ",
              line.from, " with ", parts.size(), " parts");
    }
  }
}

bool Checker::WasMember(const Published& line, uint64_t incarnation) const {
  const auto memberships = memberships_.find({line.shard, line.incarnation});
  if (memberships == memberships_.end()) return false;
  // Each membership counts until the next one, which may have come in the same event as the version.
  bool was = false;
  for (const Installed* installed : memberships->second) {
    if (installed->version <= line.from) was = false;
    if (installed->version < line.to) was |= MemberOf(*installed, incarnation) != nullptr;
  }
  return was;
}

bool Checker::ScaledAsPushed(const Published& line, uint64_t batch) const {
  const auto sent = sent_.find(Who(*line.weights, batch));
  if (sent == sent_.end()) return false;
  for (const PushSent* push : sent->second) {
    if (push->batch != batch || push->base.size() <= line.shard) continue;
    const v1::Version& base = push->base[line.shard];
    if (base.incarnation() != line.incarnation) continue;
    for (uint64_t before = std::max(line.from, base.count()); before < line.to; ++before) {
      if (ScaledCount(before - base.count()) == ledger_.CountOf(*line.weights, batch)) return true;
    }
  }
  return false;
}

void Checker::CheckArrivals(const Published& line, const std::vector<float>& before) {
  const std::vector<float>& after = *line.weights;
  uint64_t changed = 0;
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    const float had = ledger_.CountOf(before, batch), has = ledger_.CountOf(after, batch);
    if (had == has) continue;
    ++changed;
    if (!HasOnce(after, batch) || had != 0) {
      Violate(Invariant::kOnce, "ps:", line.shard, " changed the count of batch ", batch, " from ", had,
              " to ", has, " with version ", line.to);
      continue;
    }
    const uint64_t who = Who(after, batch);
    if (!WasMember(line, who)) {
      Violate(Invariant::kFenced, "ps:", line.shard, " applied batch ", batch, " of incarnation ", who,
              ", which was no member when version ", line.from, " became ", line.to, " at ", At(line.at));
    }
    if (scales() && !ScaledAsPushed(line, batch)) {
      Violate(Invariant::kStaleness, "ps:", line.shard, " scaled batch ", batch, " by ", has / ledger_.unit(),
              " between the versions ", line.from, " and ", line.to);
    }
  }
  if (changed != line.to - line.from) {
    Violate(Invariant::kOnce, "ps:", line.shard, " changed ", changed, " batches from version ", line.from,
            " to ", line.to);
  }
}

uint64_t Checker::ClockIn(const std::vector<float>& weights, const v1::Member& member) const {
  uint64_t clock = member.start_clock();
  const auto sent = sent_.find(member.incarnation());
  if (sent == sent_.end()) return clock;
  for (const PushSent* push : sent->second) {
    if (Has(weights, push->batch) && Who(weights, push->batch) == member.incarnation()) {
      clock = std::max(clock, push->clock + 1);
    }
  }
  return clock;
}

void Checker::CheckJoins() {
  if (sync()) return;
  for (const Joined& joined : log_.joins) {
    if (joined.reader) continue;
    // On each shard: the slowest of the workers that counted there when the shard learned of the new worker.
    std::optional<uint64_t> slowest;
    bool known = true;
    for (const auto& [shard, memberships] : memberships_) {
      const auto told = std::find_if(memberships.begin(), memberships.end(), [&](const Installed* installed) {
        return MemberOf(*installed, joined.incarnation) != nullptr;
      });
      if (told == memberships.end() || told == memberships.begin() || (*told)->at > joined.at) continue;
      const Installed* const before = *std::prev(told);
      // If no worker has stayed, there is no slowest.
      const auto& now = (*told)->membership.members();
      if (std::none_of(now.begin(), now.end(), [&](const v1::Member& member) {
            return !member.idle() && !member.joining() && MemberOf(*before, member.incarnation()) != nullptr;
          })) {
        continue;
      }
      // When several versions are published at once, the log has only the last.
      const std::vector<float>* const weights = Find(shard, (*told)->version);
      if (weights == nullptr) known = false;
      // A worker that is removed as the new one comes counted until then.
      for (const Installed* installed : {before, *told}) {
        for (const v1::Member& other : installed->membership.members()) {
          if (other.idle() || other.incarnation() == joined.incarnation) continue;
          // Each shard chooses a joining worker's first clock, until all have done so.
          if (other.joining()) known = false;
          if (other.joining() || weights == nullptr) continue;
          const uint64_t clock = ClockIn(*weights, other);
          slowest = std::min(slowest.value_or(clock), clock);
        }
      }
    }
    if (known && slowest.has_value() && joined.start_clock < *slowest) {
      Violate(Invariant::kJoin, "worker ", joined.worker, " (incarnation ", joined.incarnation,
              ") joined at clock ", joined.start_clock, ", where the slowest was at ", *slowest);
    }
  }
}

}  // namespace weir
