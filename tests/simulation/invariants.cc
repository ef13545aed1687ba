#include "tests/simulation/invariants.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/row_model.h"

namespace weir {

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

uint64_t Checker::PassedOver() const {
  std::map<uint64_t, std::set<uint64_t>> clocks;  // of an incarnation's pushes
  for (const PushSent& push : log_.sent) clocks[push.incarnation].insert(push.clock);
  uint64_t passed = 0;
  for (const auto& [incarnation, sent] : clocks) {
    passed += *sent.rbegin() - *sent.begin() + 1 - sent.size();
  }
  return passed;
}

uint64_t Checker::MostLost(uint32_t shard) const {
  // A new worker may skip clocks, and so may a worker that had nothing to do for a while.
  uint64_t most = log_.joins.size() + PassedOver();
  for (const PushAnswered& push : log_.pushes) {
    if (push.shard != shard) continue;
    // An incarnation that refuses it as stale counts it as lost, whichever worker sent it.
    if (push.reply.outcome() == v1::STALE_VERSION) ++most;
    for (const Restored& restored : log_.restored) {
      if (restored.shard != shard || restored.weights == nullptr ||
          restored.incarnation <= push.reply.version().incarnation()) {
        continue;
      }
      // Another worker may have done its batch.
      const bool has = Has(*restored.weights, push.batch);
      if (!has || Who(*restored.weights, push.batch) != push.incarnation) {
        ++most;
      }
    }
  }
  return most;
}

void Checker::CheckFinalWeights() {
  std::vector<std::string> lost_of_all;
  uint64_t declared_of_all = 0;
  bool went_back = false;
  for (uint32_t shard = 0; shard < plan_.shards(); ++shard) {
    if (shard >= log_.final_weights.size() || log_.final_weights[shard] == nullptr) {
      Violate(Invariant::kComplete, "ps:", shard, " has no final weights");
      continue;
    }
    const std::vector<float>& weights = *log_.final_weights[shard];
    if (sync() && ledger_.options().feedback) {
      // Who computed a part decides its bits; CheckCoded has checked them.
      for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
        if (Has(weights, batch) != ledger_.poisoned(batch)) continue;
        Violate(Invariant::kComplete, "ps:", shard, " ends ", Has(weights, batch) ? "with" : "without",
                " batch ", batch);
      }
      continue;
    }
    if (sync()) {
      std::vector<float> serial =
          ledger_.SerialWeights(shard, ledger_.InitialValues(uploader_.value_or(0), shard));
      const std::vector<float> rows = SerialRows(ledger_, shard);
      serial.insert(serial.end(), rows.begin(), rows.end());
      CheckEarlyRows(shard, ledger_.steps(), weights);
      for (size_t i = 0; i < OfVersion(weights.size()); ++i) {
        if (ledger_.IsWho(i) || std::memcmp(&weights[i], &serial[i], sizeof(float)) == 0) continue;
        Violate(Invariant::kComplete, "ps:", shard, " ends with ", weights[i], " at position ", i,
                "; a plain loop with ", serial[i]);
        break;
      }
      continue;
    }
    std::vector<std::string> lost;
    uint64_t dropped = 0;
    // When the incarnation after this one began; of the last one, never.
    const auto succeeded = [&](uint64_t incarnation) {
      const auto next =
          std::find_if(log_.restored.begin(), log_.restored.end(), [&](const Restored& restored) {
            return restored.shard == shard && restored.incarnation > incarnation;
          });
      return next == log_.restored.end() ? absl::InfiniteDuration() : next->at;
    };
    for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
      const float expected = ledger_.poisoned(batch, shard) ? 0 : 1;
      if (expected == 0 ? !Has(weights, batch) : HasOnce(weights, batch)) continue;
      // An earlier incarnation may have had the batch, and reported it; or had the version that it was
      // computed from.
      bool had = std::any_of(
          log_.told_batches.begin(), log_.told_batches.end(),
          [&](const ToldBatches& told) { return told.shard == shard && told.batches.Contains(batch); });
      bool stale = false;
      // Until then an incarnation had acknowledged the batch.
      absl::Duration acknowledged;
      const PushAnswered* heard = nullptr;
      for (const PushAnswered& push : log_.pushes) {
        if (push.batch != batch || push.shard != shard) continue;
        had |= push.reply.outcome() == v1::OK || push.reply.outcome() == v1::DUPLICATE_BATCH;
        stale |= push.reply.outcome() == v1::STALE_VERSION;
        if (push.reply.outcome() == v1::OK) {
          acknowledged = std::max(acknowledged, succeeded(push.reply.version().incarnation()));
        }
        if (HeardByLastIncarnation(push)) heard = &push;
      }
      // A batch that an earlier incarnation had acknowledged is done again, and may then be too stale.
      if (!Has(weights, batch) && MayHaveDropped(shard, batch, acknowledged)) {
        // A shard that went back to a checkpoint has lost its count with the rest.
        if (!RestoredTwice(shard)) ++dropped;
        continue;
      }
      if (!Has(weights, batch) && (had || stale) && RestoredTwice(shard)) {
        if (!had) continue;
        lost_of_all.push_back(absl::StrCat("batch ", batch, " on ps:", shard));
        if (!stale && heard != nullptr) {
          lost.push_back(absl::StrCat("batch ", batch, " of incarnation ", heard->incarnation, " at clock ",
                                      heard->clock));
        }
        continue;
      }
      Violate(Invariant::kComplete, "ps:", shard, " has batch ", batch, " ", ledger_.CountOf(weights, batch),
              " times at the end, not ", expected);
    }
    const auto counted = log_.dropped.find(shard);
    if (dropped > (counted == log_.dropped.end() ? 0 : counted->second)) {
      Violate(Invariant::kStaleness, "ps:", shard, " lacks ", dropped, " batches, and counts ",
              counted == log_.dropped.end() ? 0 : counted->second, " pushes that were too stale");
    }
    const auto declared = log_.lost.find(shard);
    declared_of_all += declared == log_.lost.end() ? 0 : declared->second;
    went_back |= RestoredTwice(shard);
    if (lost.size() > (declared == log_.lost.end() ? 0 : declared->second)) {
      Violate(Invariant::kDeclared, "ps:", shard, " lacks ", lost.size(),
              " pushes that were acknowledged and has declared ",
              declared == log_.lost.end() ? 0 : declared->second, ": ", absl::StrJoin(lost, ", "));
    }
    const uint64_t most = MostLost(shard);
    if (declared != log_.lost.end() && declared->second > most) {
      Violate(Invariant::kDeclared, "ps:", shard, " has declared ", declared->second,
              " pushes lost, and at most ", most, " were");
    }
  }
  if (!sync() && !went_back && log_.lost_in_summary.value_or(0) > declared_of_all) {
    Violate(Invariant::kDeclared, "the summary tells of ", *log_.lost_in_summary,
            " lost pushes, the shards of ", declared_of_all);
  }
  if (lost_of_all.size() > log_.lost_in_summary.value_or(UINT64_MAX)) {
    Violate(Invariant::kDeclared, "the summary tells of ", *log_.lost_in_summary, " lost pushes, not of ",
            lost_of_all.size(), ": ", absl::StrJoin(lost_of_all, ", "));
  }
}

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
    case Invariant::kRows:
      return "rows";
    case Invariant::kBase:
      return "base";
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
    case Invariant::kCoded:
      return "coded";
    case Invariant::kEpochs:
      return "epochs";
    case Invariant::kStaleIncarnation:
      return "stale incarnation";
    case Invariant::kRestored:
      return "restored";
    case Invariant::kDeclared:
      return "declared";
    case Invariant::kReplaced:
      return "replaced";
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
