// Bugs of a shard's policy: which pushes it takes, and which pulls it answers.
#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "tests/simulation/planted_bugs.h"
#include "tests/simulation/wrapped_policy.h"

namespace weir {
namespace {

// Wraps each shard's policy in `Policy(inner)`.
template <typename Policy>
void WrapPolicy(Site* site) {
  site->seams.make_policy = [](const v1::JobConfig& config, const v1::Install& install) {
    return std::make_unique<Policy>(Shard::PolicyFromConfig(config, install));
  };
}

// ---- pushes

class NoDedup final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  PushDecision OnPush(const PushKey& push) const override {
    const PushDecision decision = inner_->OnPush(push);
    return decision == PushDecision::kRepeat && !CompleteStep().has_value() ? PushDecision::kApply : decision;
  }
};

class CountsPushes final : public WrappedPolicy {
 public:
  CountsPushes(std::unique_ptr<ConsistencyPolicy> inner, uint32_t parts)
      : WrappedPolicy(std::move(inner)), parts_(parts) {}
  PushDecision OnPush(const PushKey& push) const override {
    const PushDecision decision = inner_->OnPush(push);
    const bool open = push.clock == inner_->JoinClock();
    return decision == PushDecision::kRepeat && open ? PushDecision::kStage : decision;
  }
  void Complete(const PushKey& push) override {
    ++pushes_;
    inner_->Complete(push);
  }
  std::optional<uint64_t> CompleteStep() const override {
    return pushes_ >= parts_ ? std::optional<uint64_t>(inner_->JoinClock()) : inner_->CompleteStep();
  }
  void Commit() override {
    pushes_ = 0;
    inner_->Commit();
  }

 private:
  const uint32_t parts_;
  uint32_t pushes_ = 0;
};

class TakesLateParts final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  PushDecision OnPush(const PushKey& push) const override {
    const PushDecision decision = inner_->OnPush(push);
    const uint64_t open = inner_->JoinClock();
    if (decision != PushDecision::kRepeat || push.clock + 1 != open) return decision;
    return inner_->OnPush({push.worker, open, push.part});
  }
};

// Pushes that a shard has to refuse: shard, worker, clock.
using RefusedPushes = std::set<std::tuple<uint32_t, uint32_t, uint64_t>>;

class LeavesRefusedOpen final : public WrappedPolicy {
 public:
  LeavesRefusedOpen(std::unique_ptr<ConsistencyPolicy> inner, std::shared_ptr<const RefusedPushes> refused,
                    uint32_t shard)
      : WrappedPolicy(std::move(inner)), refused_(std::move(refused)), shard_(shard) {}
  void Complete(const PushKey& push) override {
    if (refused_->count({shard_, push.worker, push.clock}) == 0) inner_->Complete(push);
  }

 private:
  const std::shared_ptr<const RefusedPushes> refused_;
  const uint32_t shard_;
};

void RefusedNotCompleted(Site* site) {
  if (site->plan.sync()) return;
  const auto refused = std::make_shared<RefusedPushes>();
  site->seams.request = [site, refused](uint64_t, uint32_t shard, v1::ExchangeRequest* request) {
    if (!request->has_push()) return;
    const v1::PushRequest& push = request->push();
    const std::tuple key(shard, push.caller().worker(), push.clock());
    // The worker may have been at this clock before, in another incarnation and with another batch.
    refused->erase(key);
    if (site->ledger.poisoned(push.batch_plus_one() - 1, shard)) refused->insert(key);
  };
  site->seams.make_policy = [refused](const v1::JobConfig& config, const v1::Install& install) {
    return std::make_unique<LeavesRefusedOpen>(Shard::PolicyFromConfig(config, install), refused,
                                               install.shard());
  };
}

// ---- pulls

class IgnoresBound final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    const std::vector<uint32_t> awaited = inner_->WaitingFor(worker, clock);
    return std::count(awaited.begin(), awaited.end(), worker) > 0 ? PullDecision::kWait
                                                                  : PullDecision::kReady;
  }
};

class IgnoresOwnPushes final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    const std::vector<uint32_t> awaited = inner_->WaitingFor(worker, clock);
    return awaited.empty() || awaited == std::vector<uint32_t>{worker} ? PullDecision::kReady
                                                                       : PullDecision::kWait;
  }
};

// ---- membership

class WaitsForTheDead final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  void Remove(uint32_t) override {}
  void Forget(uint32_t) override {}
};

class JoinsAtZero final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  uint64_t JoinClock() const override { return 0; }
};

class StartsAfresh final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  // The clock of a joining worker counts from its start, whatever the coordinator says.
  void Admit(uint32_t worker, uint64_t) override { inner_->Admit(worker, 0); }
};

// ---- what outlives a server

class NoWatermarks final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  std::vector<WorkerRecord> Records() const override { return {}; }
};

class KeepsLossesQuiet final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  uint64_t Skip(uint32_t worker, uint64_t clock) override {
    inner_->Skip(worker, clock);
    return clock;
  }
};

class WaitsForTheLost final : public WrappedPolicy {
 public:
  using WrappedPolicy::WrappedPolicy;
  uint64_t Skip(uint32_t, uint64_t clock) override { return clock; }
};

}  // namespace

std::vector<PlantedBug> PlantedInPolicies() {
  return {
      {"dedup off", "a repeated push is taken for a new one", {Invariant::kOnce}, WrapPolicy<NoDedup>},
      {"refused clock not completed",
       "others wait for a push that was refused",
       {Invariant::kProgress},
       RefusedNotCompleted},
      {"late part taken",
       "a part of a step that is past counts for the open one",
       {Invariant::kParts},
       WrapPolicy<TakesLateParts>},
      {"bound off by one",
       "a pull waits for clock - s - 1",
       {Invariant::kBound},
       [](Site* site) {
         if (site->plan.config.consistency().mode() != v1::ConsistencyConfig::MODE_BOUNDED) return;
         site->seams.make_policy = [](const v1::JobConfig& config, const v1::Install&) {
           return MakeBoundedPolicy(config.consistency().staleness() + 1);
         };
       }},
      {"pull ignores the bound",
       "a pull waits for its worker's own pushes only",
       {Invariant::kBound},
       WrapPolicy<IgnoresBound>},
      {"pull without own pushes",
       "a pull does not wait for its worker's own pushes",
       {Invariant::kOwnPushes},
       WrapPolicy<IgnoresOwnPushes>},
      {"dead are waited for",
       "a worker that was taken out still counts",
       {Invariant::kProgress},
       WrapPolicy<WaitsForTheDead>},
      {"join at clock 0",
       "a worker that joins late starts at the first clock",
       {Invariant::kJoin},
       WrapPolicy<JoinsAtZero>},
      {"start clock ignored",
       "a shard lets a new worker count from 0",
       {Invariant::kProgress},
       WrapPolicy<StartsAfresh>},
      {"watermarks not saved",
       "a checkpoint lacks the workers' clocks",
       {Invariant::kDeclared},
       WrapPolicy<NoWatermarks>},
      {"lost clocks not declared",
       "a restored shard says nothing of what it lost",
       {Invariant::kDeclared},
       WrapPolicy<KeepsLossesQuiet>},
      {"lost clocks waited for",
       "others wait for pushes that were lost",
       {Invariant::kProgress},
       WrapPolicy<WaitsForTheLost>},
      {"barrier counts pushes",
       "a step is complete after R pushes, whichever parts they are",
       {Invariant::kParts},
       [](Site* site) {
         if (!site->plan.sync()) return;
         site->seams.make_policy = [](const v1::JobConfig& config, const v1::Install& install) {
           return std::make_unique<CountsPushes>(Shard::PolicyFromConfig(config, install), install.parts());
         };
         // Without this the coordinator would wait for the parts.
         site->seams.reported = [](uint32_t, const v1::ShardReport& report) {
           std::vector<v1::ControlMessage> out(report.has_staged() ? 1 : 0);
           if (out.empty()) return out;
           out[0].mutable_commit()->set_step(report.staged().step());
           *out[0].mutable_commit()->mutable_parts() = report.staged().parts();
           return out;
         };
       }},
  };
}

}  // namespace weir
