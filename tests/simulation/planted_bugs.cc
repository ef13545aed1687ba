#include "tests/simulation/planted_bugs.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/planted_bug.h"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

const char* planted = "";

// A policy with one thing wrong: overrides what is wrong.
class Wrapped : public ConsistencyPolicy {
 public:
  explicit Wrapped(std::unique_ptr<ConsistencyPolicy> inner) : inner_(std::move(inner)) {}
  void Restore(uint64_t version, absl::Span<const WorkerRecord> records) override {
    inner_->Restore(version, records);
  }
  std::vector<WorkerRecord> Records() const override { return inner_->Records(); }
  void Admit(uint32_t worker, uint64_t clock) override { inner_->Admit(worker, clock); }
  void Remove(uint32_t worker) override { inner_->Remove(worker); }
  void Forget(uint32_t worker) override { inner_->Forget(worker); }
  uint64_t JoinClock() const override { return inner_->JoinClock(); }
  PushDecision OnPush(const PushKey& push) const override { return inner_->OnPush(push); }
  void Complete(const PushKey& push) override { inner_->Complete(push); }
  uint64_t Skip(uint32_t worker, uint64_t clock) override { return inner_->Skip(worker, clock); }
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    return inner_->OnPull(worker, clock);
  }
  std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const override {
    return inner_->WaitingFor(worker, clock);
  }
  std::vector<WorkerClockValue> Clocks() const override { return inner_->Clocks(); }
  std::optional<uint64_t> CompleteStep() const override { return inner_->CompleteStep(); }
  void Commit() override { inner_->Commit(); }

 protected:
  const std::unique_ptr<ConsistencyPolicy> inner_;
};

// Puts `Policy(inner)` in the place of each shard's policy.
template <typename Policy>
void WrapPolicy(Site* site) {
  site->seams.make_policy = [](const v1::JobConfig& config, const v1::Install& install) {
    return std::make_unique<Policy>(Shard::PolicyFromConfig(config, install));
  };
}

// ---- pushes

class NoDedup final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  PushDecision OnPush(const PushKey& push) const override {
    const PushDecision decision = inner_->OnPush(push);
    return decision == PushDecision::kRepeat && !CompleteStep().has_value() ? PushDecision::kApply : decision;
  }
};

class CountsPushes final : public Wrapped {
 public:
  CountsPushes(std::unique_ptr<ConsistencyPolicy> inner, uint32_t parts)
      : Wrapped(std::move(inner)), parts_(parts) {}
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

class TakesLateParts final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  PushDecision OnPush(const PushKey& push) const override {
    const PushDecision decision = inner_->OnPush(push);
    const uint64_t open = inner_->JoinClock();
    if (decision != PushDecision::kRepeat || push.clock + 1 != open) return decision;
    return inner_->OnPush({push.worker, open, push.part});
  }
};

// ---- pulls

class IgnoresBound final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    const std::vector<uint32_t> awaited = inner_->WaitingFor(worker, clock);
    return std::count(awaited.begin(), awaited.end(), worker) > 0 ? PullDecision::kWait
                                                                  : PullDecision::kReady;
  }
};

class IgnoresOwnPushes final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    const std::vector<uint32_t> awaited = inner_->WaitingFor(worker, clock);
    return awaited.empty() || awaited == std::vector<uint32_t>{worker} ? PullDecision::kReady
                                                                       : PullDecision::kWait;
  }
};

// ---- membership

class WaitsForTheDead final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void Remove(uint32_t) override {}
  void Forget(uint32_t) override {}
};

class JoinsAtZero final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  uint64_t JoinClock() const override { return 0; }
};

class StartsAfresh final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  // The clock of a worker that joins counts from its start, whatever the coordinator says.
  void Admit(uint32_t worker, uint64_t) override { inner_->Admit(worker, 0); }
};

// ---- what the coordinator and its shards tell each other

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

// What a shard has staged of its open step, for the bugs that need to know it.
struct Staged {
  uint64_t step = 0;
  std::vector<uint32_t> parts;  // in the order in which they came
  bool abandoned = false;       // a worker was removed meanwhile
};
using StagedByShard = std::shared_ptr<std::map<uint32_t, Staged>>;

class Recording final : public Wrapped {
 public:
  Recording(std::unique_ptr<ConsistencyPolicy> inner, Staged* staged, bool gives_up)
      : Wrapped(std::move(inner)), staged_(staged), gives_up_(gives_up) {}
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

// Parts are summed as they came.
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

// Who was removed stays a member, until another process takes its rank.
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

// The shard is told the newest membership under the epoch of the one before.
void EpochOfBefore(Site* site) {
  auto last = std::make_shared<std::map<uint32_t, uint64_t>>();
  site->seams.control = [last](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.has_membership()) {
      v1::Membership& now = *changed.mutable_membership()->mutable_membership();
      const uint64_t epoch = now.epoch();
      // Two changes share a number; the shard does not see that the second is another.
      if (epoch % 3 == 0 && (*last)[shard] + 1 == epoch) now.set_epoch(epoch - 1);
      (*last)[shard] = epoch;
    }
    return std::vector<v1::ControlMessage>{changed};
  };
}

// Every version lies in the same memory.
void TornPull(Site* site) {
  site->seams.weights_source = [](uint32_t) -> SlabSource {
    auto slab = std::make_shared<std::shared_ptr<float>>();
    return [slab](size_t elements) {
      if (*slab == nullptr) *slab = AllocateSlab(elements);
      return *slab;
    };
  };
}

// ---- what outlives a server

// A disk with one thing wrong: overrides what is wrong.
class WrappedFiles : public FileSystem {
 public:
  explicit WrappedFiles(FileSystem* inner) : inner_(inner) {}
  explicit WrappedFiles(std::unique_ptr<FileSystem> inner) : owned_(std::move(inner)), inner_(owned_.get()) {}
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    return inner_->Create(path, existing);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return inner_->Open(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return inner_->Rename(from, to);
  }
  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    return inner_->RenameNew(from, to);
  }
  absl::Status Remove(const std::string& path) override { return inner_->Remove(path); }
  absl::Status MakeFolder(const std::string& path) override { return inner_->MakeFolder(path); }
  absl::Status RemoveFolder(const std::string& path) override { return inner_->RemoveFolder(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return inner_->List(folder);
  }
  absl::Status SyncFolder(const std::string& folder) override { return inner_->SyncFolder(folder); }

 protected:
  // A folder that is held has the same thing wrong.
  template <typename Files>
  absl::StatusOr<std::unique_ptr<FileSystem>> HoldAs(const std::string& path) {
    auto held = inner_->OpenFolder(path);
    if (!held.ok()) return held;
    return std::unique_ptr<FileSystem>(std::make_unique<Files>(*std::move(held)));
  }

 private:
  const std::unique_ptr<FileSystem> owned_;

 protected:
  FileSystem* const inner_;
};

class NoSync final : public WrappedFiles {
 public:
  using WrappedFiles::WrappedFiles;
  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return HoldAs<NoSync>(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    auto file = inner_->Create(path, existing);
    if (!file.ok()) return file;
    return std::unique_ptr<WritableFile>(std::make_unique<Unsynced>(*std::move(file)));
  }

 private:
  class Unsynced final : public WritableFile {
   public:
    explicit Unsynced(std::unique_ptr<WritableFile> inner) : inner_(std::move(inner)) {}
    absl::Status Append(absl::string_view data) override { return inner_->Append(data); }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::Status Close() override { return inner_->Close(); }

   private:
    const std::unique_ptr<WritableFile> inner_;
  };
};

class NoFolderSync final : public WrappedFiles {
 public:
  using WrappedFiles::WrappedFiles;
  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return HoldAs<NoFolderSync>(path);
  }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }
};

template <typename Files>
void WrapFiles(Site* site) {
  site->seams.files = std::make_shared<Files>(&site->disk);
  site->files = site->seams.files.get();
}

// What a coordinator that starts again reads is not what it was.
class ForgetfulStore final : public JobStore {
 public:
  ForgetfulStore(std::unique_ptr<JobStore> inner, bool numbers, bool checkpoint)
      : inner_(std::move(inner)), opened_(inner_->opened()) {
    if (numbers) opened_.used = {};
    if (checkpoint) opened_.newest.reset();
  }
  const Opened& opened() const override { return opened_; }
  absl::Status Reserve(const Numbers& up_to) override { return inner_->Reserve(up_to); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    inner_->Commit(std::move(manifest), std::move(done));
  }

 private:
  const std::unique_ptr<JobStore> inner_;
  Opened opened_;
};

std::function<void(Site*)> Forget(bool numbers, bool checkpoint) {
  return [numbers, checkpoint](Site* site) {
    site->seams.store = [numbers, checkpoint](std::unique_ptr<JobStore> inner) {
      return std::make_unique<ForgetfulStore>(std::move(inner), numbers, checkpoint);
    };
  };
}

// Says that a checkpoint is complete before it is.
class HastyStore final : public JobStore {
 public:
  explicit HastyStore(std::unique_ptr<JobStore> inner) : inner_(std::move(inner)) {}
  const Opened& opened() const override { return inner_->opened(); }
  absl::Status Reserve(const Numbers& up_to) override { return inner_->Reserve(up_to); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    done(absl::OkStatus());
    inner_->Commit(std::move(manifest), [](const absl::Status&) {});
  }

 private:
  const std::unique_ptr<JobStore> inner_;
};

class NoWatermarks final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  std::vector<WorkerRecord> Records() const override { return {}; }
};

class WaitsForTheLost final : public Wrapped {
 public:
  using Wrapped::Wrapped;
  uint64_t Skip(uint32_t, uint64_t clock) override { return clock; }
};

// Shard 1 begins anew where the others go back to a checkpoint.
void RestoreOneLess(Site* site) {
  site->seams.control = [](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (shard == 1 && message.has_install()) changed.mutable_install()->clear_restore();
    return std::vector<v1::ControlMessage>{changed};
  };
}

// The weights come back, and nothing of what has made them.
void WeightsOnly(Site* site) {
  site->seams.control = [](uint32_t, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.install().has_restore()) changed.mutable_install()->mutable_restore()->set_weights_only(true);
    return std::vector<v1::ControlMessage>{changed};
  };
}

std::function<void(Site*)> InProduct(const char* name) {
  return [name](Site*) { SetPlanted(name); };
}

}  // namespace

// The strong one.
bool Planted(absl::string_view bug) { return bug == planted; }

void SetPlanted(const char* bug) { planted = bug; }

const std::vector<PlantedBug>& PlantedBugs() {
  static const auto* const bugs = new std::vector<PlantedBug>{
      {"dedup off", "a repeated push is taken for a new one", {Invariant::kOnce}, WrapPolicy<NoDedup>},
      {"batch not named",
       "a batch that is handed out again cannot be told from a new one",
       {Invariant::kOnce},
       [](Site* site) {
         if (!site->plan.sync())
           site->seams.push = [](v1::PushRequest* push) { push->clear_batch_plus_one(); };
       }},
      {"barrier counts pushes",
       "a step is complete after R pushes, whichever parts they are",
       {Invariant::kParts},
       [](Site* site) {
         if (!site->plan.sync()) return;
         site->seams.make_policy = [](const v1::JobConfig& config, const v1::Install& install) {
           return std::make_unique<CountsPushes>(Shard::PolicyFromConfig(config, install), install.parts());
         };
         // The coordinator would wait for the parts all the same.
         site->seams.reported = [](uint32_t, const v1::ShardReport& report) {
           std::vector<v1::ControlMessage> out(report.has_staged() ? 1 : 0);
           if (out.empty()) return out;
           out[0].mutable_commit()->set_step(report.staged().step());
           *out[0].mutable_commit()->mutable_parts() = report.staged().parts();
           return out;
         };
       }},
      {"late part taken",
       "a part of a step that is past counts for the open one",
       {Invariant::kParts},
       WrapPolicy<TakesLateParts>},
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
      {"unweighted mean",
       "a short part counts like a whole one",
       {Invariant::kComplete},
       InProduct("unweighted mean")},
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
      {"torn pull", "weights are written while they are being read", {Invariant::kTorn}, TornPull},
      {"view taken back",
       "memory that a client reads in place is used again when the client's time is over",
       {Invariant::kTorn},
       [](Site* site) { site->seams.takes_views_back = true; }},
      {"torn pin", "a reader's pin takes another step on one shard", {Invariant::kTorn}, TornPin},
      {"no fencing", "who was taken out may go on pushing", {Invariant::kFenced}, NoFencing},
      {"dead are waited for",
       "a worker that was taken out still counts",
       {Invariant::kProgress},
       WrapPolicy<WaitsForTheDead>},
      {"epoch used again", "two memberships share an epoch", {Invariant::kEpochs}, EpochOfBefore},
      {"join at clock 0",
       "a worker that joins late starts at the first clock",
       {Invariant::kJoin},
       WrapPolicy<JoinsAtZero>},
      {"start clock ignored",
       "a shard lets a new worker count from 0",
       {Invariant::kProgress},
       WrapPolicy<StartsAfresh>},
      {"refused clock not completed",
       "others wait for a push that was refused",
       {Invariant::kProgress},
       InProduct("refused clock not completed")},
      {"dead versions are waited for",
       "what was made of overtaken pushes counts as read, and these wait until nobody reads it",
       {Invariant::kProgress},
       InProduct("dead versions are waited for")},
      {"readers are waited for",
       "the next version waits for those who read old ones as long as they like",
       {Invariant::kProgress},
       InProduct("readers are waited for")},
      {"batch applied twice",
       "a shard does not remember which batches it has applied",
       {Invariant::kOnce},
       InProduct("batch applied twice")},
      {"one shard is enough",
       "a push is done when any shard has it",
       {Invariant::kComplete},
       [](Site* site) { site->seams.one_shard_is_enough = true; }},
      {"old life's version accepted",
       "a restored shard takes what was computed from the weights it lost",
       {Invariant::kStaleLife},
       InProduct("old life's version accepted")},
      {"epochs start again",
       "a coordinator that starts again counts epochs from 1",
       {Invariant::kEpochs},
       Forget(true, false)},
      {"checkpoint forgotten",
       "a coordinator that starts again begins anew",
       {Invariant::kRestored},
       Forget(false, true)},
      {"no fsync", "files are closed, not synced", {Invariant::kRestored}, WrapFiles<NoSync>},
      {"no fsync of folders",
       "a name may be lost after it was counted on",
       {Invariant::kRestored},
       WrapFiles<NoFolderSync>},
      {"acknowledged before durable",
       "a checkpoint counts before its manifest is written",
       {Invariant::kRestored},
       [](Site* site) {
         site->seams.store = [](std::unique_ptr<JobStore> inner) {
           return std::make_unique<HastyStore>(std::move(inner));
         };
       }},
      {"watermarks not saved",
       "a checkpoint lacks the workers' clocks",
       {Invariant::kDeclared},
       WrapPolicy<NoWatermarks>},
      {"dedup lost on restart",
       "of a checkpoint only the weights are taken",
       {Invariant::kOnce},
       WeightsOnly},
      {"one shard not restored",
       "one shard begins anew while the others go back",
       {Invariant::kRestored},
       RestoreOneLess},
      {"lost clocks not declared",
       "a restored shard says nothing of what it lost",
       {Invariant::kDeclared},
       InProduct("lost clocks not declared")},
      {"lost clocks waited for",
       "others wait for pushes that were lost",
       {Invariant::kProgress},
       WrapPolicy<WaitsForTheLost>},
  };
  return *bugs;
}

}  // namespace weir
