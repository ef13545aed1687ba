// Bugs in the messages between the coordinator and its shards.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "tests/simulation/planted_bugs.h"
#include "tests/simulation/wrapped_policy.h"

namespace weir {
namespace {

// A shard commits a step when it has all parts itself.
void CommitPerShard(Site* site) {
  const uint32_t parts = site->plan.ledger.parts;
  const uint64_t batches = site->ledger.batches();
  site->seams.reported = [parts, batches](uint32_t,
                                          const v1::ShardReport& report) -> std::vector<v1::ControlMessage> {
    if (!report.has_staged()) return {};
    v1::ControlMessage message;
    message.mutable_commit()->set_step(report.staged().step());
    const std::set<uint32_t> refused(report.staged().refused_parts().begin(),
                                     report.staged().refused_parts().end());
    for (uint32_t part = 0; part < parts && report.staged().step() * parts + part < batches; ++part) {
      if (refused.count(part) == 0) message.mutable_commit()->add_parts(part);
    }
    return {message};
  };
}

// The parts that a shard has staged of its open step, for the bugs that need them.
struct Staged {
  uint64_t step = 0;
  std::vector<uint32_t> parts;  // in the order of arrival
  bool abandoned = false;       // a worker was removed meanwhile
};
using StagedByShard = std::shared_ptr<std::map<uint32_t, Staged>>;

class Recording final : public WrappedPolicy {
 public:
  Recording(std::unique_ptr<ConsistencyPolicy> inner, Staged* staged, bool gives_up)
      : WrappedPolicy(std::move(inner)), staged_(staged), gives_up_(gives_up) {}
  void Complete(const PushKey& push) override {
    staged_->parts.push_back(push.part);
    inner_->Complete(push);
  }
  void Remove(uint32_t worker) override {
    staged_->abandoned = gives_up_ && !staged_->parts.empty();
    inner_->Remove(worker);
  }
  std::optional<uint64_t> CompleteStep() const override {
    return staged_->abandoned ? std::optional<uint64_t>(inner_->JoinClock()) : inner_->CompleteStep();
  }
  void Commit() override {
    staged_->parts.clear();
    staged_->abandoned = false;
    inner_->Commit();
    staged_->step = inner_->JoinClock();
  }

 private:
  Staged* const staged_;
  const bool gives_up_;
};

StagedByShard Record(Site* site, bool gives_up) {
  auto staged = std::make_shared<std::map<uint32_t, Staged>>();
  if (!site->plan.sync()) return staged;
  site->seams.make_policy = [staged, gives_up](const v1::JobConfig& config, const v1::Install& install) {
    return std::make_unique<Recording>(Shard::PolicyFromConfig(config, install), &(*staged)[install.shard()],
                                       gives_up);
  };
  return staged;
}

// Parts are summed in the order of arrival.
void ArrivalOrder(Site* site) {
  const StagedByShard staged = Record(site, /*gives_up=*/false);
  site->seams.control = [staged](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.has_commit()) {
      const std::set<uint32_t> parts(message.commit().parts().begin(), message.commit().parts().end());
      changed.mutable_commit()->clear_parts();
      for (uint32_t part : (*staged)[shard].parts) {
        if (parts.count(part) > 0) changed.mutable_commit()->add_parts(part);
      }
    }
    return std::vector<v1::ControlMessage>{changed};
  };
}

// When a worker dies, each shard ends the open step with the parts that it has.
void HalfPush(Site* site) {
  const StagedByShard staged = Record(site, /*gives_up=*/true);
  site->seams.control = [staged](uint32_t shard, const v1::ControlMessage& message) {
    std::vector<v1::ControlMessage> out{message};
    Staged& open = (*staged)[shard];
    if (message.has_membership() && !open.parts.empty() &&
        message.membership().membership().members_size() > 0) {
      v1::ControlMessage commit;
      commit.mutable_commit()->set_step(open.step);
      std::vector<uint32_t> parts = open.parts;
      std::sort(parts.begin(), parts.end());
      commit.mutable_commit()->mutable_parts()->Add(parts.begin(), parts.end());
      out.push_back(commit);
    }
    return out;
  };
}

// A removed worker stays a member until another process takes its rank.
void NoFencing(Site* site) {
  auto before = std::make_shared<std::map<uint32_t, v1::Membership>>();
  site->seams.control = [before](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.has_membership()) {
      v1::Membership& now = *changed.mutable_membership()->mutable_membership();
      for (const v1::Member& old : (*before)[shard].members()) {
        const bool there = std::any_of(now.members().begin(), now.members().end(),
                                       [&](const v1::Member& m) { return m.worker() == old.worker(); });
        if (there) continue;
        *now.add_members() = old;
        now.mutable_members(now.members_size() - 1)->set_idle(true);
      }
      (*before)[shard] = now;
    }
    return std::vector<v1::ControlMessage>{changed};
  };
}

// A pin reaches one shard only after its next step.
void TornPin(Site* site) {
  auto held = std::make_shared<std::vector<v1::ControlMessage>>();
  site->seams.control = [held](uint32_t shard, const v1::ControlMessage& message) {
    std::vector<v1::ControlMessage> out;
    if (shard == 1 && message.has_pin()) {
      held->push_back(message);
    } else {
      out.push_back(message);
    }
    if (shard == 1 && (message.has_commit() || message.has_ping())) {
      out.insert(out.end(), held->begin(), held->end());
      held->clear();
    }
    return out;
  };
}

// The shard gets the newest membership under the previous epoch.
void EpochOfBefore(Site* site) {
  auto last = std::make_shared<std::map<uint32_t, uint64_t>>();
  site->seams.control = [last](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.has_membership()) {
      v1::Membership& now = *changed.mutable_membership()->mutable_membership();
      const uint64_t epoch = now.epoch();
      // Two changes share a number; the shard does not see that the second one differs.
      if (epoch % 3 == 0 && (*last)[shard] + 1 == epoch) now.set_epoch(epoch - 1);
      (*last)[shard] = epoch;
    }
    return std::vector<v1::ControlMessage>{changed};
  };
}

// Shard 1 starts from nothing where the others go back to a checkpoint.
void RestoreOneLess(Site* site) {
  site->seams.control = [](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (shard == 1 && message.has_install()) changed.mutable_install()->clear_restore();
    return std::vector<v1::ControlMessage>{changed};
  };
}

// A restore brings back the weights, but not the state behind them.
void WeightsOnly(Site* site) {
  site->seams.control = [](uint32_t, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.install().has_restore()) changed.mutable_install()->mutable_restore()->set_weights_only(true);
    return std::vector<v1::ControlMessage>{changed};
  };
}

// The last worker's last part still belongs to one that is gone.
void ShareOfTheGone(Site* site) {
  const uint32_t parts = site->plan.ledger.parts;
  site->seams.membership = [parts](v1::Membership* membership) {
    uint32_t shared = 0;
    for (const v1::Member& member : membership->members()) shared += member.share();
    if (membership->members().empty() || shared != parts) return;
    v1::Member& last = *membership->mutable_members(membership->members_size() - 1);
    if (last.share() == 0) return;
    last.set_share(last.share() - 1);
    v1::Member& gone = *membership->add_members();
    gone = last;
    gone.set_worker(last.worker() + 1);
    gone.set_incarnation(last.incarnation() + 1000000);
    gone.set_share(1);
  };
}

bool Shares(const Plan& plan) { return plan.sync() && plan.ledger.parts > plan.workers.size(); }

}  // namespace

std::vector<PlantedBug> PlantedInMessages() {
  return {
      {"commit per shard",
       "a shard commits a step without the coordinator",
       {Invariant::kParts},
       [](Site* site) {
         if (site->plan.sync()) CommitPerShard(site);
       }},
      {"half push",
       "a worker dies between its pushes to two shards, and the step goes on without it where it is missing",
       {Invariant::kParts},
       HalfPush},
      {"sum in arrival order", "parts are summed as they come", {Invariant::kComplete}, ArrivalOrder},
      {"torn pin", "a reader's pin takes another step on one shard", {Invariant::kTorn}, TornPin},
      {"no fencing", "who was taken out may go on pushing", {Invariant::kFenced}, NoFencing},
      {"epoch used again", "two memberships share an epoch", {Invariant::kEpochs}, EpochOfBefore},
      {"one shard not restored",
       "one shard begins anew while the others go back",
       {Invariant::kRestored},
       RestoreOneLess},
      {"share of who is gone",
       "a part of each step belongs to a worker that was taken out",
       {Invariant::kProgress},
       ShareOfTheGone,
       Shares},
      {"dedup lost on restart",
       "of a checkpoint only the weights are taken",
       {Invariant::kOnce},
       WeightsOnly},
  };
}

}  // namespace weir
