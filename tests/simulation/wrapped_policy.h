#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "ps_server/consistency/policy.h"

namespace weir {

// A policy in which a subclass overrides a function.
class WrappedPolicy : public ConsistencyPolicy {
 public:
  explicit WrappedPolicy(std::unique_ptr<ConsistencyPolicy> inner) : inner_(std::move(inner)) {}
  void Restore(uint64_t version, absl::Span<const WorkerRecord> records) override {
    inner_->Restore(version, records);
  }
  std::vector<WorkerRecord> Records() const override { return inner_->Records(); }
  void Admit(uint32_t worker, uint64_t clock) override { inner_->Admit(worker, clock); }
  void SetShare(uint32_t worker, uint32_t share) override { inner_->SetShare(worker, share); }
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

}  // namespace weir
