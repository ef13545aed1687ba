#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tests/simulation/run_log.h"
#include "tests/simulation/wrapped_policy.h"

namespace weir {

// Tells what becomes of pushes: of a step whose rows do not wait for it, and, outside sync, of those that are
// disposed of.
class WatchedPolicy final : public WrappedPolicy {
 public:
  using Tell = std::function<void(EarlyRowsEvent::Kind kind, const PushKey& push)>;
  WatchedPolicy(std::unique_ptr<ConsistencyPolicy> inner, Tell tell)
      : WrappedPolicy(std::move(inner)), tell_(std::move(tell)) {
    tell_(EarlyRowsEvent::Kind::kBegun, {});
  }
  void Complete(const PushKey& push) override {
    tell_(EarlyRowsEvent::Kind::kPart, push);
    WrappedPolicy::Complete(push);
  }
  void Commit() override {
    tell_(EarlyRowsEvent::Kind::kCommitted, {});
    WrappedPolicy::Commit();
  }

 private:
  const Tell tell_;
};

}  // namespace weir
