// Checks of the answers to callers.
#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "absl/strings/str_join.h"
#include "tests/simulation/checker.h"

namespace weir {

void Checker::CheckPush(const PushAnswered& push) {
  const v1::PushReply& reply = push.reply;
  const ShardIncarnation shard{push.shard, reply.version().incarnation()};
  const auto where = [&] {
    return absl::StrCat("the push of batch ", push.batch, " by worker ", push.worker, " (incarnation ",
                        push.incarnation, ", clock ", push.clock, ") to ps:", push.shard, ", answered at ",
                        At(push.at));
  };
  switch (reply.outcome()) {
    case v1::OK: {
      if (sync() && reply.version().count() != push.clock + 1) {
        return Violate(Invariant::kAcknowledged, where(), " is said to be in version ",
                       reply.version().count());
      }
      const std::vector<float>* const weights = Find(shard, reply.version().count());
      const bool there = weights != nullptr && Has(*weights, push.batch);
      if (weights != nullptr && !there) {
        return Violate(Invariant::kAcknowledged, where(), " is not in version ", reply.version().count());
      }
      // In sync the version may hold another worker's computation of the same part.
      if (there && !sync() && Who(*weights, push.batch) != push.incarnation) {
        Violate(Invariant::kAcknowledged, where(), " is in as that of incarnation ",
                Who(*weights, push.batch));
      }
      const std::vector<float>* const before = Find(shard, reply.version().count() - 1);
      if (before != nullptr && Has(*before, push.batch)) {
        Violate(Invariant::kAcknowledged, where(), " was in before version ", reply.version().count());
      }
      if (push.base.incarnation() != reply.version().incarnation()) {
        return Violate(Invariant::kStaleIncarnation, where(), " was computed from incarnation ",
                       push.base.incarnation(), " of the shard and taken by incarnation ",
                       reply.version().incarnation());
      }
      if (!sync() && push.base.count() + reply.staleness() + 1 != reply.version().count()) {
        Violate(Invariant::kStaleness, where(), " was computed from version ", push.base.count(),
                ", made version ", reply.version().count(), " and was told ", reply.staleness());
      }
      if (!sync() && reply.staleness() > staleness_limit().value_or(UINT64_MAX)) {
        Violate(Invariant::kStaleness, where(), " was applied with a staleness of ", reply.staleness());
      }
      return;
    }
    case v1::REFUSED:
      if (MayDrop(push)) {
        const auto versions = versions_.find(shard);
        if (versions == versions_.end() || versions->second.empty()) return;
        const std::vector<float>& newest = *versions->second.rbegin()->second;
        if (Has(newest, push.batch) && Who(newest, push.batch) == push.incarnation) {
          Violate(Invariant::kRefused, where(), " was refused as too stale, and is in");
        }
        return;
      }
      if (sync() ? !ledger_.poisoned(push.batch) : !ledger_.poisoned(push.batch, push.shard)) {
        Violate(Invariant::kRefused, where(), " was refused: ", reply.reason());
      }
      return;
    case v1::DUPLICATE_BATCH: {
      // The shard refused it before.
      if (ledger_.poisoned(push.batch, push.shard) ||
          MayHaveDropped(push.shard, push.batch, absl::ZeroDuration(), &push)) {
        return;
      }
      // Another worker's push of the batch is in the version.
      const auto it = versions_.find(shard);
      const bool there = it != versions_.end() && !it->second.empty() &&
                         Has(*it->second.rbegin()->second, push.batch) &&
                         Who(*it->second.rbegin()->second, push.batch) != push.incarnation;
      if (!there)
        Violate(Invariant::kAcknowledged, where(), " is called a duplicate, and no other push of it is in");
      return;
    }
    default:
      return;
  }
}

void Checker::CheckPushesAcrossShards() {
  if (!sync()) return;
  // (incarnation, batch) -> the outcomes it was given; step -> its parts, by shard.
  std::map<std::pair<uint64_t, uint64_t>, std::map<v1::Outcome, uint32_t>> told;
  for (const PushAnswered& push : log_.pushes)
    told[{push.incarnation, push.batch}][push.reply.outcome()] = push.shard;
  for (const auto& [key, outcomes] : told) {
    if (outcomes.count(v1::OK) > 0 && outcomes.count(v1::REFUSED) > 0) {
      Violate(Invariant::kParts, "batch ", key.second, " was taken by ps:", outcomes.at(v1::OK),
              " and refused by ps:", outcomes.at(v1::REFUSED));
    }
  }
  std::map<uint64_t, std::map<std::set<uint64_t>, uint32_t>> steps;
  for (const auto& [shard, versions] : versions_) {
    for (const auto& [version, weights] : versions) {
      if (version == 0) continue;
      std::set<uint64_t> parts;
      const uint64_t first = (version - 1) * ledger_.options().parts;
      for (uint64_t b = first; b < std::min(ledger_.batches(), first + ledger_.options().parts); ++b) {
        if (Has(*weights, b)) parts.insert(b);
      }
      steps[version - 1].emplace(parts, shard.first);
    }
  }
  for (const auto& [step, sets] : steps) {
    if (sets.size() < 2) continue;
    Violate(Invariant::kParts, "step ", step, " has the batches ", absl::StrJoin(sets.begin()->first, ", "),
            " on ps:", sets.begin()->second, " and ", absl::StrJoin(sets.rbegin()->first, ", "),
            " on ps:", sets.rbegin()->second);
  }
}

void Checker::CheckPulls() {
  for (const ChangedView& view : log_.changed_views) {
    Violate(Invariant::kTorn, "worker ", view.worker, " held version ", view.version.count(),
            " of ps:", view.shard, " in place until ", At(view.at), ", when it was no longer that version");
  }
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, uint64_t> newest;  // incarnation, shard, the shard's
                                                                        // incarnation
  std::map<uint64_t, std::set<uint64_t>> pinned;
  for (const PullAnswered& pull : log_.pulls) {
    if (pull.reply.outcome() != v1::OK || pull.weights == nullptr) continue;
    CheckWeights(pull);
    const uint64_t version = pull.reply.version().count();
    if (pull.pin != 0) {
      std::set<uint64_t>& steps = pinned[pull.pin];
      if (sync() && steps.insert(version).second && steps.size() > 1) {
        Violate(Invariant::kTorn, "one pin mixes the steps ", absl::StrJoin(steps, " and "));
      }
      continue;
    }
    uint64_t& before = newest[{pull.incarnation, pull.shard, pull.reply.version().incarnation()}];
    if (version < before || (sync() && version != pull.clock)) {
      Violate(Invariant::kMonotonic, "worker ", pull.worker, " read version ", version, " of ps:", pull.shard,
              " at clock ", pull.clock, " after version ", before);
    }
    before = std::max(before, version);
    if (sync()) continue;
    CheckWatermarks(pull);
    CheckBound(pull);
  }
}

void Checker::CheckWeights(const PullAnswered& pull) {
  const std::vector<float>& read = *pull.weights;
  const v1::Version& version = pull.reply.version();
  if (const auto* published = Find({pull.shard, version.incarnation()}, version.count())) {
    CheckEarlyRows(pull.shard, version.count(), read);
    for (size_t i = 0; i < OfVersion(read.size()); ++i) {
      if (std::memcmp(&read[i], &(*published)[i], sizeof(float)) == 0) continue;
      return Violate(Invariant::kTorn, "worker ", pull.worker, " read ", read[i], " at position ", i,
                     " of version ", version.count(), " of ps:", pull.shard, ", which has ", (*published)[i]);
    }
    return;
  }
  if (sync()) {
    return Violate(Invariant::kTorn, "worker ", pull.worker, " read version ", version.count(),
                   " of ps:", pull.shard, ", which was never published");
  }
}

void Checker::CheckSent() {
  for (const ToldEarly& told : log_.told_early) {
    Violate(Invariant::kBase, "worker ", told.worker, " had tensor ", told.tensor, " of its pull at clock ",
            told.clock, " at ", At(told.at), ", before ps:", told.shard, " had answered the pull");
  }
  // (incarnation, shard, clock) -> what was read for it: incarnations and versions.
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, std::set<std::pair<uint64_t, uint64_t>>> read;
  for (const PullAnswered& pull : log_.pulls) {
    if (pull.reply.outcome() != v1::OK || pull.pin != 0) continue;
    read[{pull.incarnation, pull.shard, pull.clock}].insert(
        {pull.reply.version().incarnation(), pull.reply.version().count()});
  }
  for (const PushSent& push : log_.sent) {
    for (uint32_t shard = 0; shard < push.base.size(); ++shard) {
      const v1::Version& base = push.base[shard];
      const auto where = [&] {
        return absl::StrCat("the gradient of batch ", push.batch, " by incarnation ", push.incarnation,
                            " at clock ", push.clock, ", pushed at ", At(push.at), " as of version ",
                            base.count(), " of ps:", shard);
      };
      if (read[{push.incarnation, shard, push.clock}].count({base.incarnation(), base.count()}) == 0) {
        Violate(Invariant::kBase, where(), ", is of weights that were not read for that clock");
        continue;
      }
      const std::vector<float>* const published = Find({shard, base.incarnation()}, base.count());
      const std::vector<float>& read_weights = *push.weights[shard];
      const auto end = read_weights.begin() + static_cast<int64_t>(OfVersion(read_weights.size()));
      if (published != nullptr && !std::equal(read_weights.begin(), end, published->begin())) {
        Violate(Invariant::kBase, where(), ", was computed from other weights");
      }
    }
  }
}

uint64_t Checker::ClockOf(uint64_t incarnation, uint64_t start, const ShardIncarnation& shard,
                          const std::vector<float>& weights, absl::Duration at) const {
  uint64_t clock = start;
  const auto it = sent_.find(incarnation);
  if (it == sent_.end()) return clock;
  for (const PushSent* push : it->second) {
    // Refused pushes count as completed: those that are not finite, those whose batch another worker has
    // done, and those of another incarnation's version, even if the answer was lost.
    if (push->at <= at &&
        (Has(weights, push->batch) || ledger_.poisoned(push->batch, shard.first) ||
         push->base[shard.first].incarnation() != shard.second || Delivered(*push, shard, at))) {
      clock = std::max(clock, push->clock + 1);
    }
  }
  return clock;
}

void Checker::CheckWatermarks(const PullAnswered& pull) {
  const Installed* const installed = MembershipAt({pull.shard, pull.reply.version().incarnation()}, pull.at);
  if (installed == nullptr) return;
  for (const v1::WorkerClock& listed : pull.reply.clocks()) {
    for (const v1::Member& member : installed->membership.members()) {
      const auto sent = sent_.find(member.incarnation());
      if (member.worker() != listed.worker() || sent == sent_.end()) continue;
      for (const PushSent* push : sent->second) {
        if (push->clock < listed.clock() || !Has(*pull.weights, push->batch) ||
            Who(*pull.weights, push->batch) != member.incarnation()) {
          continue;
        }
        Violate(Invariant::kWatermarks, "version ", pull.reply.version().count(), " of ps:", pull.shard,
                " was sent with worker ", listed.worker(), " at clock ", listed.clock(),
                ", and holds its push at clock ", push->clock);
      }
    }
  }
}

void Checker::CheckBound(const PullAnswered& pull) {
  const std::vector<float>& read = *pull.weights;
  const uint64_t s = plan_.config.consistency().staleness();
  const uint64_t ahead = plan_.config.consistency().prefetch() ? s : 0;
  const auto own = sent_.find(pull.incarnation);
  if (own != sent_.end()) {
    for (const PushSent* push : own->second) {
      if (push->clock + ahead >= pull.clock || Has(read, push->batch) ||
          ledger_.poisoned(push->batch, pull.shard) ||
          Delivered(*push, {pull.shard, pull.reply.version().incarnation()}, pull.at)) {
        continue;
      }
      Violate(Invariant::kOwnPushes, "worker ", pull.worker, " read ps:", pull.shard, " at clock ",
              pull.clock, " without its own push at clock ", push->clock);
    }
  }
  if (!bounded()) return;
  for (const v1::WorkerClock& clock : pull.reply.clocks()) {
    if (clock.clock() + s < pull.clock) {
      Violate(Invariant::kBound, "worker ", pull.worker, " read ps:", pull.shard, " at clock ", pull.clock,
              " while worker ", clock.worker(), " is said to be at ", clock.clock());
    }
  }
  // The workers that counted all the time from the request to the answer.
  const ShardIncarnation shard{pull.shard, pull.reply.version().incarnation()};
  const Installed* const first = MembershipAt(shard, pull.asked);
  if (first == nullptr) return;
  for (const v1::Member& member : first->membership.members()) {
    if (member.incarnation() == pull.incarnation) continue;
    bool counts = true;
    uint64_t start = 0;
    for (const Installed* installed : memberships_.at(shard)) {
      if (installed->at < first->at || installed->at > pull.at) continue;
      const v1::Member* const then = MemberOf(*installed, member.incarnation());
      counts &= then != nullptr && !then->idle() && !then->joining();
      if (then != nullptr) start = std::max(start, then->start_clock());
    }
    if (!counts) continue;
    const uint64_t clock = ClockOf(member.incarnation(), start, shard, read, pull.at);
    if (clock + s < pull.clock) {
      Violate(Invariant::kBound, "worker ", pull.worker, " read ps:", pull.shard, " at clock ", pull.clock,
              ", version ", pull.reply.version().count(), ", where worker ", member.worker(), " is at clock ",
              clock);
    }
  }
}

bool Checker::MayHaveDropped(uint32_t shard, uint64_t batch, absl::Duration since,
                             const PushAnswered* except) const {
  const auto completed = [&](const PushSent& push) {
    return std::any_of(log_.completed.begin(), log_.completed.end(), [&](const PushCompleted& one) {
      return one.shard == shard && one.incarnation == push.incarnation && one.clock == push.clock &&
             one.at >= since;
    });
  };
  return std::any_of(log_.sent.begin(), log_.sent.end(), [&](const PushSent& push) {
    const bool excepted =
        except != nullptr && push.incarnation == except->incarnation && push.clock == except->clock;
    return push.batch == batch && !excepted && completed(push);
  });
}

}  // namespace weir
