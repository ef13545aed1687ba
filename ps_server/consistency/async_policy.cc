#include "ps_server/consistency/apply_on_arrival.h"

namespace weir {
namespace {

class AsyncPolicy final : public ApplyOnArrival {
 public:
  PullDecision OnPull(uint32_t worker, uint64_t clock) const override {
    return this->clock(worker) >= clock ? PullDecision::kReady : PullDecision::kWait;
  }

  std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const override {
    if (OnPull(worker, clock) == PullDecision::kReady) return {};
    return {worker};
  }
};

}  // namespace

std::unique_ptr<ConsistencyPolicy> MakeAsyncPolicy() { return std::make_unique<AsyncPolicy>(); }

}  // namespace weir
