#include "tests/simulation/invariants.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weir {
namespace {

constexpr size_t kExamplesOfInvariant = 3;

class Checker {
 public:
  Checker(const Plan& plan, const Ledger& ledger, const RunLog& log)
      : plan_(plan), ledger_(ledger), log_(log) {}

  std::vector<Violation> Check(uint64_t* operations) {
    for (const std::string& complaint : log_.complaints) Violate(Invariant::kProtocol, complaint);
    for (const PushSent& push : log_.sent) sent_[push.incarnation].push_back(&push);
    for (const PushAnswered& push : log_.pushes)
      answered_[{push.incarnation, push.shard, push.clock}] = &push;
    CheckMemberships();
    CheckRestored();
    CheckPublications();
    for (const PushAnswered& push : log_.pushes) CheckPush(push);
    CheckPushesAcrossShards();
    CheckPulls();
    CheckEnd();
    *operations = log_.pushes.size() + log_.pulls.size() + log_.published.size() + log_.installed.size() +
                  log_.joins.size();
    return std::move(violations_);
  }

 private:
  using Life = std::pair<uint32_t, uint64_t>;  // of a shard

  bool bounded() const { return plan_.config.consistency().mode() == v1::ConsistencyConfig::MODE_BOUNDED; }
  bool sync() const { return plan_.sync(); }

  template <typename... Text>
  void Violate(Invariant invariant, const Text&... text) {
    if (++seen_[invariant] <= kExamplesOfInvariant) violations_.push_back({invariant, absl::StrCat(text...)});
  }
  static std::string At(absl::Duration at) { return absl::FormatDuration(at); }

  bool Has(const std::vector<float>& weights, uint64_t batch) const { return weights[batch] != 0; }
  // Who pushed it; only where Has().
  uint64_t Who(const std::vector<float>& weights, uint64_t batch) const {
    return static_cast<uint64_t>(std::llround(weights[ledger_.batches() + batch] / weights[batch]));
  }
  const std::vector<float>* Find(const Life& life, uint64_t version) const {
    const auto it = versions_.find(life);
    if (it == versions_.end()) return nullptr;
    const auto found = it->second.find(version);
    return found == it->second.end() ? nullptr : found->second.get();
  }
  // The membership that this life of a shard held at that time.
  const Installed* MembershipAt(const Life& life, absl::Duration at) const {
    const auto it = memberships_.find(life);
    if (it == memberships_.end()) return nullptr;
    const Installed* found = nullptr;
    for (const Installed* installed : it->second) {
      if (installed->at <= at) found = installed;
    }
    return found;
  }
  static const v1::Member* MemberOf(const Installed& installed, uint64_t incarnation) {
    for (const v1::Member& member : installed.membership.members()) {
      if (member.incarnation() == incarnation) return &member;
    }
    return nullptr;
  }

  // The shard had answered the push by then, as one that it needs not hold: since it refused it, or had it in
  // an earlier life.
  bool Delivered(const PushSent& push, const Life& life, absl::Duration at) const {
    const auto it = answered_.find({push.incarnation, life.first, push.clock});
    if (it == answered_.end()) return false;
    const v1::PushReply& reply = it->second->reply;
    // When the shard decided is between the sending and the answer.
    if (reply.outcome() != v1::OK) return push.at <= at;
    return reply.version().incarnation() != life.second && it->second->at <= at;
  }

  void CheckMemberships();
  void CheckRestored();
  void CheckPublications();
  void CheckStep(const Published& line, const std::vector<float>& before);
  void CheckArrivals(const Published& line, const std::vector<float>& before);
  void CheckPush(const PushAnswered& push);
  void CheckPushesAcrossShards();
  void CheckPulls();
  void CheckWeights(const PullAnswered& pull);
  void CheckWatermarks(const PullAnswered& pull);
  void CheckBound(const PullAnswered& pull);
  uint64_t ClockOf(uint64_t incarnation, uint64_t start, const Life& life, const std::vector<float>& weights,
                   absl::Duration at) const;
  bool RestoredTwice(uint32_t shard) const {
    return std::count_if(log_.restored.begin(), log_.restored.end(),
                         [&](const Restored& r) { return r.shard == shard; }) > 1;
  }
  void CheckEnd();
  // The shard's last life has answered the pusher after this.
  bool HeardByLastLife(const PushAnswered& push) const {
    uint64_t last = 0;
    for (const Restored& restored : log_.restored) {
      if (restored.shard == push.shard) last = restored.life;
    }
    return std::any_of(log_.pulls.begin(), log_.pulls.end(), [&](const PullAnswered& pull) {
      return pull.incarnation == push.incarnation && pull.shard == push.shard && pull.clock > push.clock &&
             pull.reply.outcome() == v1::OK && pull.reply.version().incarnation() == last;
    });
  }
  void CheckFinalWeights();

  const Plan& plan_;
  const Ledger& ledger_;
  const RunLog& log_;
  std::vector<Violation> violations_;
  std::map<Invariant, size_t> seen_;
  std::map<Life, std::map<uint64_t, Weights>> versions_;
  std::map<Life, std::vector<const Installed*>> memberships_;
  std::map<uint64_t, std::vector<const PushSent*>> sent_;  // by incarnation
  // By incarnation, shard, clock.
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, const PushAnswered*> answered_;
};

void Checker::CheckMemberships() {
  std::map<uint64_t, std::string> epochs;
  std::map<uint32_t, uint64_t> newest;
  for (const Installed& installed : log_.installed) {
    memberships_[{installed.shard, installed.life}].push_back(&installed);
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
    const auto nothing = std::make_shared<const std::vector<float>>(ledger_.elements(), 0.0f);
    const auto same = [&](const Weights& other) {
      return std::memcmp(other->data(), restored.weights->data(), other->size() * sizeof(float)) == 0;
    };
    bool known = restored.version == 0 && same(nothing);
    for (const Published& line : log_.published) {
      known |= line.shard == restored.shard && line.to == restored.version && line.at <= restored.at &&
               same(line.weights);
    }
    if (!known) {
      Violate(Invariant::kRestored, "ps:", restored.shard, " starts at ", At(restored.at), " with version ",
              restored.version, " in bits that it never had");
    }
    for (const CheckpointSaved& saved : log_.saved) {
      // One that was complete just now may not be known yet to whoever restores.
      if (saved.at + absl::Milliseconds(500) > restored.at ||
          saved.versions[restored.shard].count() <= restored.version)
        continue;
      Violate(Invariant::kRestored, "ps:", restored.shard, " starts at ", At(restored.at), " with version ",
              restored.version, " though the checkpoint of ", At(saved.at), " holds version ",
              saved.versions[restored.shard].count());
    }
    versions_[{restored.shard, restored.life}][restored.version] = restored.weights;
  }
}

void Checker::CheckPublications() {
  for (const Published& line : log_.published) {
    const Life life{line.shard, line.life};
    const std::vector<float>* const before = Find(life, line.from);
    if (before == nullptr || line.weights == nullptr || line.to <= line.from) {
      Violate(Invariant::kOnce, "ps:", line.shard, " went from version ", line.from, " to ", line.to);
      continue;
    }
    if (sync()) {
      CheckStep(line, *before);
    } else {
      CheckArrivals(line, *before);
    }
    versions_[life][line.to] = line.weights;
  }
}

void Checker::CheckStep(const Published& line, const std::vector<float>& before) {
  const std::vector<float>& after = *line.weights;
  std::set<uint64_t> parts;
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    if (after[batch] == before[batch]) continue;
    if (batch / ledger_.options().parts != line.from || line.to != line.from + 1 || Has(before, batch)) {
      Violate(Invariant::kOnce, "ps:", line.shard, " changed batch ", batch, " from ", before[batch], " to ",
              after[batch], " in step ", line.from, " -> ", line.to);
    }
    parts.insert(batch);
  }
  const double excess = ledger_.Excess(line.from, parts);
  for (uint64_t batch : parts) {
    if (std::abs((after[batch] - before[batch]) / excess - 1) > 1e-3) {
      Violate(Invariant::kOnce, "ps:", line.shard, " counts batch ", batch, " ",
              (after[batch] - before[batch]) / excess, " times in step ", line.from, " with ", parts.size(),
              " parts");
    }
  }
}

void Checker::CheckArrivals(const Published& line, const std::vector<float>& before) {
  const std::vector<float>& after = *line.weights;
  uint64_t changed = 0;
  const Installed* const installed = MembershipAt({line.shard, line.life}, line.at);
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    if (after[batch] == before[batch]) continue;
    ++changed;
    if (after[batch] != 1 || before[batch] != 0) {
      Violate(Invariant::kOnce, "ps:", line.shard, " changed the count of batch ", batch, " from ",
              before[batch], " to ", after[batch], " with version ", line.to);
      continue;
    }
    const uint64_t who = Who(after, batch);
    if (installed == nullptr || MemberOf(*installed, who) == nullptr) {
      Violate(Invariant::kFenced, "ps:", line.shard, " applied batch ", batch, " of incarnation ", who,
              ", which is no member under epoch ", installed == nullptr ? 0 : installed->membership.epoch());
    }
  }
  if (changed != line.to - line.from) {
    Violate(Invariant::kOnce, "ps:", line.shard, " changed ", changed, " batches from version ", line.from,
            " to ", line.to);
  }
}

void Checker::CheckPush(const PushAnswered& push) {
  const v1::PushReply& reply = push.reply;
  const Life life{push.shard, reply.version().incarnation()};
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
      const std::vector<float>* const weights = Find(life, reply.version().count());
      const bool there = weights != nullptr && Has(*weights, push.batch);
      if (weights != nullptr && !there) {
        return Violate(Invariant::kAcknowledged, where(), " is not in version ", reply.version().count());
      }
      // In sync whoever else computed the part has it in as well.
      if (there && !sync() && Who(*weights, push.batch) != push.incarnation) {
        Violate(Invariant::kAcknowledged, where(), " is in as that of incarnation ",
                Who(*weights, push.batch));
      }
      const std::vector<float>* const before = Find(life, reply.version().count() - 1);
      if (before != nullptr && Has(*before, push.batch)) {
        Violate(Invariant::kAcknowledged, where(), " was in before version ", reply.version().count());
      }
      if (push.base.incarnation() != reply.version().incarnation()) {
        return Violate(Invariant::kStaleLife, where(), " was computed from life ", push.base.incarnation(),
                       " of the shard and taken by life ", reply.version().incarnation());
      }
      if (!sync() && push.base.count() + reply.staleness() + 1 != reply.version().count()) {
        Violate(Invariant::kStaleness, where(), " was computed from version ", push.base.count(),
                ", made version ", reply.version().count(), " and was told ", reply.staleness());
      }
      return;
    }
    case v1::REFUSED:
      if (sync() ? !ledger_.poisoned(push.batch) : !ledger_.poisoned(push.batch, push.shard)) {
        Violate(Invariant::kRefused, where(), " was refused: ", reply.reason());
      }
      return;
    case v1::DUPLICATE_BATCH: {
      // It was refused here before.
      if (ledger_.poisoned(push.batch, push.shard)) return;
      // Somebody else's is in.
      const auto it = versions_.find(life);
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
  // (incarnation, batch) -> what it was told; step -> its parts, by shard.
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
  for (const auto& [life, versions] : versions_) {
    for (const auto& [version, weights] : versions) {
      if (version == 0) continue;
      std::set<uint64_t> parts;
      const uint64_t first = (version - 1) * ledger_.options().parts;
      for (uint64_t b = first; b < std::min(ledger_.batches(), first + ledger_.options().parts); ++b) {
        if (Has(*weights, b)) parts.insert(b);
      }
      steps[version - 1].emplace(parts, life.first);
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
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, uint64_t> newest;  // incarnation, shard, its life
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
    for (size_t i = 0; i < read.size(); ++i) {
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

uint64_t Checker::ClockOf(uint64_t incarnation, uint64_t start, const Life& life,
                          const std::vector<float>& weights, absl::Duration at) const {
  uint64_t clock = start;
  const auto it = sent_.find(incarnation);
  if (it == sent_.end()) return clock;
  for (const PushSent* push : it->second) {
    // Refused ones count as completed: those that are not finite, and those whose batch somebody else has
    // done.
    if (push->at <= at && (Has(weights, push->batch) || ledger_.poisoned(push->batch, life.first) ||
                           Delivered(*push, life, at))) {
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
  const auto own = sent_.find(pull.incarnation);
  if (own != sent_.end()) {
    for (const PushSent* push : own->second) {
      if (push->clock >= pull.clock || Has(read, push->batch) || ledger_.poisoned(push->batch, pull.shard) ||
          Delivered(*push, {pull.shard, pull.reply.version().incarnation()}, pull.at)) {
        continue;
      }
      Violate(Invariant::kOwnPushes, "worker ", pull.worker, " read ps:", pull.shard, " at clock ",
              pull.clock, " without its own push at clock ", push->clock);
    }
  }
  if (!bounded()) return;
  const uint64_t s = plan_.config.consistency().staleness();
  for (const v1::WorkerClock& clock : pull.reply.clocks()) {
    if (clock.clock() + s < pull.clock) {
      Violate(Invariant::kBound, "worker ", pull.worker, " read ps:", pull.shard, " at clock ", pull.clock,
              " while worker ", clock.worker(), " is said to be at ", clock.clock());
    }
  }
  // Who counted all the time from the question to the answer.
  const Life life{pull.shard, pull.reply.version().incarnation()};
  const Installed* const first = MembershipAt(life, pull.asked);
  if (first == nullptr) return;
  for (const v1::Member& member : first->membership.members()) {
    if (member.incarnation() == pull.incarnation) continue;
    bool counts = true;
    uint64_t start = 0;
    for (const Installed* installed : memberships_.at(life)) {
      if (installed->at < first->at || installed->at > pull.at) continue;
      const v1::Member* const then = MemberOf(*installed, member.incarnation());
      counts &= then != nullptr && !then->idle() && !then->joining();
      if (then != nullptr) start = std::max(start, then->start_clock());
    }
    if (!counts) continue;
    const uint64_t clock = ClockOf(member.incarnation(), start, life, read, pull.at);
    if (clock + s < pull.clock) {
      Violate(Invariant::kBound, "worker ", pull.worker, " read ps:", pull.shard, " at clock ", pull.clock,
              ", version ", pull.reply.version().count(), ", where worker ", member.worker(), " is at clock ",
              clock);
    }
  }
}

void Checker::CheckEnd() {
  if (!log_.ended) {
    return Violate(Invariant::kProgress, "the job has not ended ", At(plan_.patience),
                   " after the last fault; ", absl::StrJoin(log_.hanging, "; "));
  }
  if (!log_.failure.empty()) {
    if (!plan_.may_fail) return Violate(Invariant::kProgress, "the job failed: ", log_.failure);
    if (!absl::StrContains(log_.failure, "ps:")) {
      Violate(Invariant::kProgress, "the failure names no peer: ", log_.failure);
    }
  }
  for (const std::string& hanging : log_.hanging) Violate(Invariant::kProgress, hanging);
  for (const auto& [task, code] : log_.exits) {
    if (code == 0 || (!log_.failure.empty() && code == 138)) continue;
    Violate(Invariant::kProgress, task, " ended with ", code);
  }
  if (log_.failure.empty()) CheckFinalWeights();
}

void Checker::CheckFinalWeights() {
  std::vector<std::string> lost_of_all;
  for (uint32_t shard = 0; shard < plan_.shards(); ++shard) {
    if (shard >= log_.final_weights.size() || log_.final_weights[shard] == nullptr) {
      Violate(Invariant::kComplete, "ps:", shard, " has no final weights");
      continue;
    }
    const std::vector<float>& weights = *log_.final_weights[shard];
    if (sync()) {
      std::vector<float> serial = ledger_.SerialWeights(shard);
      for (size_t i = 0; i < weights.size(); ++i) {
        const bool who = i >= ledger_.batches() && i < 2 * ledger_.batches();
        if (who || std::memcmp(&weights[i], &serial[i], sizeof(float)) == 0) continue;
        Violate(Invariant::kComplete, "ps:", shard, " ends with ", weights[i], " at position ", i,
                "; a plain loop with ", serial[i]);
        break;
      }
      continue;
    }
    std::vector<std::string> lost;
    for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
      const float expected = ledger_.poisoned(batch, shard) ? 0 : 1;
      if (weights[batch] == expected) continue;
      // An earlier life may have had it; or had what it was computed from.
      bool had = false, stale = false;
      const PushAnswered* heard = nullptr;
      for (const PushAnswered& push : log_.pushes) {
        if (push.batch != batch || push.shard != shard) continue;
        had |= push.reply.outcome() == v1::OK || push.reply.outcome() == v1::DUPLICATE_BATCH;
        stale |= push.reply.outcome() == v1::STALE_VERSION;
        if (HeardByLastLife(push)) heard = &push;
      }
      if (weights[batch] == 0 && (had || stale) && RestoredTwice(shard)) {
        if (!had) continue;
        lost_of_all.push_back(absl::StrCat("batch ", batch, " on ps:", shard));
        if (!stale && heard != nullptr) {
          lost.push_back(absl::StrCat("batch ", batch, " of incarnation ", heard->incarnation, " at clock ",
                                      heard->clock));
        }
        continue;
      }
      Violate(Invariant::kComplete, "ps:", shard, " has batch ", batch, " ", weights[batch],
              " times at the end, not ", expected);
    }
    const auto declared = log_.lost.find(shard);
    if (lost.size() > (declared == log_.lost.end() ? 0 : declared->second)) {
      Violate(Invariant::kDeclared, "ps:", shard, " lacks ", lost.size(),
              " pushes that were acknowledged and has declared ",
              declared == log_.lost.end() ? 0 : declared->second, ": ", absl::StrJoin(lost, ", "));
    }
  }
  if (lost_of_all.size() > log_.lost_in_summary.value_or(UINT64_MAX)) {
    Violate(Invariant::kDeclared, "the summary tells of ", *log_.lost_in_summary, " lost pushes, not of ",
            lost_of_all.size(), ": ", absl::StrJoin(lost_of_all, ", "));
  }
}

}  // namespace

const char* Name(Invariant invariant) {
  switch (invariant) {
    case Invariant::kOnce:
      return "once";
    case Invariant::kAcknowledged:
      return "acknowledged";
    case Invariant::kRefused:
      return "refused";
    case Invariant::kFenced:
      return "fenced";
    case Invariant::kParts:
      return "parts";
    case Invariant::kTorn:
      return "torn";
    case Invariant::kMonotonic:
      return "monotonic";
    case Invariant::kBound:
      return "bound";
    case Invariant::kOwnPushes:
      return "own pushes";
    case Invariant::kWatermarks:
      return "watermarks";
    case Invariant::kStaleness:
      return "staleness";
    case Invariant::kEpochs:
      return "epochs";
    case Invariant::kStaleLife:
      return "stale life";
    case Invariant::kRestored:
      return "restored";
    case Invariant::kDeclared:
      return "declared";
    case Invariant::kJoin:
      return "join";
    case Invariant::kComplete:
      return "complete";
    case Invariant::kProgress:
      return "progress";
    case Invariant::kProtocol:
      return "protocol";
  }
  return "";
}

std::vector<Violation> CheckInvariants(const Plan& plan, const Ledger& ledger, const RunLog& log,
                                       uint64_t* operations) {
  return Checker(plan, ledger, log).Check(operations);
}

}  // namespace weir
