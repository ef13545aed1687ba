#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tests/simulation/run_log.h"
#include "tests/simulation/wrapped_policy.h"

namespace weir {

// Tells of the pushes of each step whose rows do not wait for the step. Outside sync, tells of each push that
// is disposed of.
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
