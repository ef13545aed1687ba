#include <map>
#include <set>

#include "common/protocol/part_assignment.h"
#include "ps_server/consistency/policy.h"

namespace weir {
namespace {

// Counts distinct parts of the open step, never messages: the step has a part once, whichever workers
// computed it and however often it comes.
class SyncPolicy final : public ConsistencyPolicy {
 public:
  SyncPolicy(uint32_t parts, uint64_t total_batches, uint32_t backups)
      : parts_(parts), total_batches_(total_batches), backups_(backups) {}

  void Restore(uint64_t version, absl::Span<const WorkerRecord> /*records*/) override { step_ = version; }
  // There are no records; the only state is the step, which is the version.
  std::vector<WorkerRecord> Records() const override { return {}; }
  void Admit(uint32_t worker, uint64_t /*clock*/) override { shares_.emplace(worker, 0); }
  void SetShare(uint32_t worker, uint32_t share) override { shares_[worker] = share; }
  void Remove(uint32_t worker) override { shares_.erase(worker); }
  void Forget(uint32_t worker) override { shares_.erase(worker); }
  uint64_t JoinClock() const override { return step_; }

  PushDecision OnPush(const PushKey& push) const override {
    if (push.part >= PartsOf(push.clock)) return PushDecision::kInvalid;
    if (push.clock < step_) return PushDecision::kRepeat;
    // A worker that has read version step_ + 1 on another shard may push while the commit is on its way to
    // this one.
    if (push.clock > step_) return push.clock == step_ + 1 ? PushDecision::kHold : PushDecision::kInvalid;
    return completed_.count(push.part) > 0 ? PushDecision::kRepeat : PushDecision::kStage;
  }

  void Complete(const PushKey& push) override { completed_.insert(push.part); }

  uint64_t Skip(uint32_t /*worker*/, uint64_t /*clock*/) override { return step_; }

  PullDecision OnPull(uint32_t /*worker*/, uint64_t clock) const override {
    if (clock == step_) return PullDecision::kReady;
    return clock > step_ ? PullDecision::kWait : PullDecision::kPast;
  }

  std::vector<uint32_t> WaitingFor(uint32_t /*worker*/, uint64_t clock) const override {
    std::set<uint32_t> slow;
    if (clock > step_ && !shares_.empty()) {
      std::vector<uint32_t> live, shares;
      for (const auto& [member, share] : shares_) {
        live.push_back(member);
        shares.push_back(share);
      }
      const PartOwners owners(shares, parts_);
      for (uint32_t part = 0; part < PartsOf(step_); ++part) {
        if (completed_.count(part) == 0) slow.insert(live[owners.OwnerOf(part)]);
      }
    }
    return {slow.begin(), slow.end()};
  }

  std::vector<WorkerClockValue> Clocks() const override {
    std::vector<WorkerClockValue> out;
    for (const auto& [worker, share] : shares_) out.push_back({worker, step_});
    return out;
  }

  std::optional<uint64_t> CompleteStep() const override {
    const uint32_t parts = PartsOf(step_);
    if (parts == 0 || completed_.size() < PartsToCommit(parts, backups_)) return std::nullopt;
    return step_;
  }

  void Commit() override {
    ++step_;
    completed_.clear();
  }

 private:
  uint32_t PartsOf(uint64_t step) const { return weir::PartsOf(step, parts_, total_batches_); }

  const uint32_t parts_;
  const uint64_t total_batches_;
  const uint32_t backups_;
  // Of the workers that count.
  std::map<uint32_t, uint32_t> shares_;
  // The open step. It equals the shard's version.
  uint64_t step_ = 0;
  // The parts of the open step that are staged or refused.
  std::set<uint32_t> completed_;
};

}  // namespace

std::unique_ptr<ConsistencyPolicy> MakeSyncPolicy(uint32_t parts, uint64_t total_batches, uint32_t backups) {
  return std::make_unique<SyncPolicy>(parts, total_batches, backups);
}

}  // namespace weir
