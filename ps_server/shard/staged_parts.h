#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/block_store.h"
#include "ps_server/shard/calls.h"

namespace weir {

// What becomes of a push. OK: it is applied. REFUSED, DUPLICATE_BATCH, STALE_VERSION: it is not, and its
// clock is complete all the same.
struct Verdict {
  v1::Outcome outcome = v1::OK;
  std::string reason;
};

// sync: the parts of the open step that a shard has, with those who wait for the step's commit; and which
// parts the last steps were committed with, for repeats.
//
// Belongs to the shard's queue.
class StagedParts {
 public:
  // Steps whose commits are kept.
  static constexpr size_t kRecorded = 2 * kHoldWindow;
  // Repeats of one push that may wait.
  static constexpr size_t kMaxWaiters = 2048;

  // A push, or a repeat of it. Parts have no owner: whoever computed them, they are the step's. So a waiter
  // that ends leaves its part staged.
  struct Waiter {
    SessionId session;
    PushDone done;
    absl::Time since;
  };

  // `refusal`: empty, or why the part is to be in no step; then `gradient` may be null.
  void Stage(const v1::PushRequest& header, Slab gradient, std::string refusal, Waiter waiter);
  bool Has(uint32_t part) const { return parts_.count(part) > 0; }
  // One more that waits for this staged part. ResourceExhausted: too many do.
  absl::Status AddWaiter(uint64_t step, uint32_t part, Waiter waiter);
  // For the coordinator: which parts are here, and which of them are refused.
  v1::StepStaged Report(uint64_t step) const;

  // What the step's update is made of, in the order of the commit. FailedPrecondition: it names a part that
  // is not here, or one that is refused.
  absl::StatusOr<std::vector<WeightedGradient>> GradientsOf(const v1::CommitStep& commit) const;
  // The step is committed: the next one is open, and without parts. `answer` gets what is to be told to each
  // waiter of a part.
  void Commit(const v1::CommitStep& commit,
              const std::function<void(const Verdict& verdict, std::vector<Waiter>& waiters)>& answer);
  // What a repeat of a push gets whose step is not open any more: OK, REFUSED or STEP_PAST.
  Verdict VerdictAt(uint64_t step, uint32_t part) const;

  // Ends those who wait for which `which` holds.
  void EndWaiters(const std::function<bool(const Waiter&)>& which,
                  const std::function<void(uint32_t part, const Waiter&)>& answer);
  void ForEachWaiter(const std::function<void(uint32_t part, const Waiter&)>& visit) const;

  // To and from a checkpoint: the commits alone, since one is taken between two steps.
  void Save(v1::ShardState& state) const;
  void Restore(const v1::ShardState& state);

 private:
  struct Part {
    Slab gradient;
    uint64_t examples = 0;
    std::string refusal;
    std::vector<Waiter> waiters;
  };
  std::map<uint32_t, Part> parts_;
  std::map<uint64_t, std::vector<uint32_t>> commits_;  // by step
};

}  // namespace weir
