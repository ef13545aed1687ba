#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/push_model.h"
#include "tests/simulation/row_model.h"

namespace weir {

constexpr size_t kExamplesOfInvariant = 3;

// Checks the log of one run against the invariants: shards by themselves (check_shards.cc), their tables
// (check_tables.cc, check_early_rows.cc), quantised pushes (check_codec.cc), the answers to callers
// (check_answers.cc), the contents of the disk (check_disk.cc), and the end (invariants.cc).
class Checker {
 public:
  Checker(const Plan& plan, const Ledger& ledger, const RunLog& log)
      : plan_(plan), ledger_(ledger), log_(log) {}

  std::vector<Violation> Check(uint64_t* operations) {
    for (const std::string& complaint : log_.complaints) Violate(Invariant::kProtocol, complaint);
    for (const std::string& damage : log_.damage) Violate(Invariant::kRestored, damage);
    for (const PushSent& push : log_.sent) sent_[push.incarnation].push_back(&push);
    for (const PushAnswered& push : log_.pushes)
      answered_[{push.incarnation, push.shard, push.clock}] = &push;
    for (const PushCompleted& push : log_.completed) {
      completed_.emplace(std::tuple(push.incarnation, push.shard, push.clock), push.at);
    }
    CheckMemberships();
    FollowEarlyRows();
    FollowPushes();
    CheckRestored();
    CheckPublications();
    CheckTables();
    CheckJoins();
    for (const PushAnswered& push : log_.pushes) CheckPush(push);
    CheckPushesAcrossShards();
    CheckPulls();
    CheckSent();
    CheckLogs();
    CheckCoordinators();
    CheckEnd();
    *operations = log_.pushes.size() + log_.pulls.size() + log_.published.size() + log_.installed.size() +
                  log_.joins.size();
    return std::move(violations_);
  }

 private:
  using ShardIncarnation = std::pair<uint32_t, uint64_t>;  // a shard and its incarnation

  bool bounded() const { return plan_.config.consistency().mode() == v1::ConsistencyConfig::MODE_BOUNDED; }
  bool sync() const { return plan_.sync(); }

  template <typename... Text>
  void Violate(Invariant invariant, const Text&... text) {
    if (++seen_[invariant] <= kExamplesOfInvariant) violations_.push_back({invariant, absl::StrCat(text...)});
  }
  static std::string At(absl::Duration at) { return absl::FormatDuration(at); }

  bool Has(const std::vector<float>& weights, uint64_t batch) const {
    return ledger_.CountOf(weights, batch) != 0;
  }
  // Whether two counts are the same. In sync with 1 bit other batches' shares of a mean are rounded, too.
  bool Same(float one, float other) const {
    return sync() && ledger_.quantised() ? std::abs(one - other) < 0.1f * ledger_.unit() : one == other;
  }
  bool scales() const { return plan_.scales(); }
  std::optional<uint64_t> staleness_limit() const { return plan_.staleness_limit(); }
  // The policy lets the shard refuse a push with this staleness, of which the shard's own count tells.
  bool MayDrop(const PushAnswered& push) const {
    const v1::PushReply& reply = push.reply;
    return staleness_limit().has_value() && reply.outcome() == v1::REFUSED &&
           reply.staleness() > *staleness_limit() &&
           push.base.count() + reply.staleness() == reply.version().count();
  }
  // bounded, async: whether a shard that has the batch has it once: 1 / (1 + its staleness) where it is
  // scaled.
  bool HasOnce(const std::vector<float>& weights, uint64_t batch) const {
    const float count = ledger_.CountOf(weights, batch);
    if (!scales()) return count == ledger_.unit();
    if (!(count > 0)) return false;
    return count == ScaledCount(static_cast<uint64_t>(std::llround(ledger_.unit() / count)) - 1);
  }
  float ScaledCount(uint64_t staleness) const { return ledger_.unit() * FactorOf(staleness); }
  static float FactorOf(uint64_t staleness) {
    return static_cast<float>(1.0 / (1.0 + static_cast<double>(staleness)));
  }
  // Whether the batch's count is that of its push, which has made a version in (from, to].
  bool ScaledAsPushed(const Published& line, uint64_t batch) const;
  // The incarnation that pushed the batch; only where Has().
  uint64_t Who(const std::vector<float>& weights, uint64_t batch) const {
    const uint64_t number = ledger_.WhoOf(weights, batch);
    return number == 0 || number > log_.joins.size() ? 0 : log_.joins[number - 1].incarnation;
  }
  // Which join it was, counted from 1.
  uint64_t NumberOf(uint64_t incarnation) const {
    const auto is = [incarnation](const Joined& joined) { return joined.incarnation == incarnation; };
    return static_cast<uint64_t>(std::find_if(log_.joins.begin(), log_.joins.end(), is) -
                                 log_.joins.begin()) +
           1;
  }
  const std::vector<float>* Find(const ShardIncarnation& shard, uint64_t version) const {
    const auto it = versions_.find(shard);
    if (it == versions_.end()) return nullptr;
    const auto found = it->second.find(version);
    return found == it->second.end() ? nullptr : found->second.get();
  }
  // The membership that this incarnation of a shard held at that time.
  const Installed* MembershipAt(const ShardIncarnation& shard, absl::Duration at) const {
    const auto it = memberships_.find(shard);
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

  // By `at` the shard had answered the push as one that it needs not hold: the shard refused it, or had it in
  // an earlier incarnation.
  bool Delivered(const PushSent& push, const ShardIncarnation& shard, absl::Duration at) const {
    if (Completed(push.incarnation, shard.first, push.clock, at)) return true;
    const auto it = answered_.find({push.incarnation, shard.first, push.clock});
    if (it == answered_.end()) {
      // A gradient of an earlier incarnation's weights is refused, and that answer may be lost.
      return push.base.size() > shard.first && push.base[shard.first].incarnation() != shard.second &&
             push.at <= at;
    }
    const v1::PushReply& reply = it->second->reply;
    // The shard decided between the sending and the answer.
    if (reply.outcome() != v1::OK) return push.at <= at;
    return reply.version().incarnation() != shard.second && it->second->at <= at;
  }

  // Where shards drop pushes: the shard had disposed of it by `at`.
  bool Completed(uint64_t incarnation, uint32_t shard, uint64_t clock, absl::Duration at) const {
    const auto found = completed_.find({incarnation, shard, clock});
    return found != completed_.end() && found->second <= at;
  }
  // Since then the shard has disposed of a push of the batch beside `except`, perhaps without an update.
  bool MayHaveDropped(uint32_t shard, uint64_t batch, absl::Duration since,
                      const PushAnswered* except = nullptr) const;

  void CheckMemberships();
  // Finds what shards get of quantised pushes.
  void FollowPushes();
  void CheckCoded(const Published& line, const std::vector<float>& before);
  void CheckRestored();
  // The initial values of this shard, which are the same worker's on all shards, for the whole job.
  bool IsInitial(uint32_t shard, const std::vector<float>& weights);
  // With the log: the shard was restored to what was published, plus pushes that had not taken effect.
  bool Replayed(const Restored& restored) const;
  void CheckLogs();
  void CheckCoordinators();
  void CheckPublications();
  // The state of a shard at a version: its weights with their rows, and the models of its table that fit
  // them. No model: what it held cannot be told.
  struct ShardTable {
    uint64_t incarnation = 0, version = 0;
    Weights weights;
    std::vector<RowModel> models;
  };
  void CheckTables();
  void TakeUpTable(const Restored& line);
  void CheckRows(const Published& line);
  void CheckSizes(const TableSeen& seen);
  // sync, where rows take effect before their step: which rows a shard may have.
  struct EarlyRows {
    RowModel table;
    std::set<uint64_t> parts;  // of the open step, whose rows it has
    bool operator==(const EarlyRows& other) const { return table == other.table && parts == other.parts; }
  };
  // A moment of a shard, and its weights then; null within: they are not known.
  struct EarlyMoment {
    uint64_t step = 0;
    std::shared_ptr<Weights> weights;
    EarlyRows rows;
  };
  // A process of a server, and what its shard may have now.
  struct EarlyProcess {
    bool seen = false;  // since its incarnation began
    uint64_t step = 0;
    std::shared_ptr<Weights> weights;
    std::vector<EarlyRows> possible;
  };
  // Follows each shard's table through all moments.
  void FollowEarlyRows();
  void FollowEarlyRows(const EarlyRowsEvent& event, EarlyProcess& process);
  // Leaves what fits; `what` says what does not, if that is all.
  template <typename Fits>
  void Keep(const EarlyRowsEvent& event, EarlyProcess& process, const std::string& what, Fits fits);
  bool SameWeights(const std::vector<float>& one, const std::vector<float>& other) const;
  bool HasRows(const std::vector<float>& all, const RowModel& table) const;
  // Whether the rows that come with the weights of a version are those of a moment of it. Where it is open
  // which shard takes the rows of a part (poisoned batches): whether they have each push once that the
  // weights have, and at most once those that they lack.
  void CheckEarlyRows(uint32_t shard, uint64_t version, const std::vector<float>& all);
  void CheckPushesIn(uint32_t shard, uint64_t version, const std::vector<float>& all);
  // Of a shard's weights and rows: how many are the same wherever this version is read.
  size_t OfVersion(size_t all) const {
    return plan_.early_rows() ? std::min(all, static_cast<size_t>(ledger_.elements())) : all;
  }
  template <typename Model>
  static void AddOnce(const Model& model, std::vector<Model>* models) {
    if (std::find(models->begin(), models->end(), model) == models->end()) models->push_back(model);
  }
  // bounded, async: the orders in which the batches between the two may have been applied. None: too many.
  std::vector<std::vector<uint64_t>> OrdersOf(const ShardTable& from, const ShardTable& to,
                                              uint32_t shard) const;
  // The models of `from` after the pushes up to `to` that fit the rows of `to`.
  std::vector<RowModel> Advance(const ShardTable& from, const ShardTable& to, uint32_t shard);
  void CheckStep(const Published& line, const std::vector<float>& before);
  // The incarnation was a member when one of these versions was made.
  bool WasMember(const Published& line, uint64_t incarnation) const;
  void CheckArrivals(const Published& line, const std::vector<float>& before);
  // A lower bound: a refused push, or a batch that another worker had done, leaves no trace in the weights.
  uint64_t ClockIn(const std::vector<float>& weights, const v1::Member& member) const;
  // Call only when published versions and answers are known.
  void CheckJoins();
  void CheckPush(const PushAnswered& push);
  void CheckPushesAcrossShards();
  void CheckSent();
  void CheckPulls();
  void CheckWeights(const PullAnswered& pull);
  void CheckWatermarks(const PullAnswered& pull);
  void CheckBound(const PullAnswered& pull);
  uint64_t ClockOf(uint64_t incarnation, uint64_t start, const ShardIncarnation& shard,
                   const std::vector<float>& weights, absl::Duration at) const;
  bool RestoredTwice(uint32_t shard) const {
    return std::count_if(log_.restored.begin(), log_.restored.end(),
                         [&](const Restored& r) { return r.shard == shard; }) > 1;
  }
  void CheckEnd();
  // After this answer the shard's last incarnation has answered the pusher.
  bool HeardByLastIncarnation(const PushAnswered& push) const {
    uint64_t last = 0;
    for (const Restored& restored : log_.restored) {
      if (restored.shard == push.shard) last = restored.incarnation;
    }
    return std::any_of(log_.pulls.begin(), log_.pulls.end(), [&](const PullAnswered& pull) {
      return pull.incarnation == push.incarnation && pull.shard == push.shard && pull.clock > push.clock &&
             pull.reply.outcome() == v1::OK && pull.reply.version().incarnation() == last;
    });
  }
  // Clocks at which workers pushed nothing, between those at which they pushed.
  uint64_t PassedOver() const;
  // The most answered pushes that the shard's incarnations may have lost, added up.
  uint64_t MostLost(uint32_t shard) const;
  void CheckFinalWeights();

  const Plan& plan_;
  const Ledger& ledger_;
  const RunLog& log_;
  std::vector<Violation> violations_;
  std::map<Invariant, size_t> seen_;
  // The rank of the worker whose initial values the job has; not set: no shard has begun with any.
  std::optional<uint32_t> uploader_;
  std::map<ShardIncarnation, std::map<uint64_t, Weights>> versions_;
  std::map<ShardIncarnation, std::vector<const Installed*>> memberships_;
  std::map<uint32_t, std::vector<ShardTable>> tables_;    // by shard, in the order of time
  std::map<uint32_t, std::vector<EarlyMoment>> moments_;  // by shard, in the order of time
  // Of some moment it is not known what the shard had.
  bool moments_missing_ = false;
  std::map<uint64_t, std::vector<const PushSent*>> sent_;  // by incarnation
  // Of quantised pushes: what a shard gets of one; empty: that is not known. By the shard, its incarnation,
  // and the batch.
  struct Got {
    const PushSent* push = nullptr;
    std::vector<float> values;
  };
  std::map<std::tuple<uint32_t, uint64_t, uint64_t>, std::vector<Got>> gets_;
  // By the worker's incarnation, shard, clock; only where shards drop pushes.
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, absl::Duration> completed_;
  // By incarnation, shard, clock.
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, const PushAnswered*> answered_;
};

}  // namespace weir
