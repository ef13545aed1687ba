#pragma once

#include <cstddef>
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
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/rows/row_arrival.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// sync: the parts of the open step that a shard has, with the calls that wait for the step's commit; and the
// parts of the last committed steps, for repeats.
//
// Belongs to the shard's queue.
class StagedParts {
 public:
  // Steps whose commits are kept.
  static constexpr size_t kRecorded = 2 * kHoldWindow;
  // The limit of waiting repeats of one push.
  static constexpr size_t kMaxWaiters = 2048;

  // A push, or a repeat of it. A part belongs to the step, not to the worker that computed it, so a part
  // stays staged when its waiter ends.
  struct Waiter {
    SessionId session;
    PushDone done;
    absl::Time since;
  };

  // `refusal`: empty, or why no step may contain the part; a refused part may have a null `gradient`.
  void Stage(const v1::PushRequest& header, Slab gradient, PushedRows rows, std::string refusal,
             Waiter waiter);
  bool empty() const { return parts_.empty(); }
  bool Has(uint32_t part) const { return parts_.count(part) > 0; }
  // What the parts' rows take.
  uint64_t row_bytes() const { return row_bytes_; }
  // Adds a waiter for this staged part. ResourceExhausted: the part has too many waiters.
  absl::Status AddWaiter(uint64_t step, uint32_t part, Waiter waiter);
  // For the coordinator: the parts that are here, and which of them are refused.
  v1::StepStaged Report(uint64_t step) const;

  // The gradients of the step's update, in the order of the commit; valid until Commit().
  struct Gradients {
    std::vector<WeightedGradient> dense;
    std::vector<WeightedRows> rows;
  };
  // FailedPrecondition: the commit is not of the open step, or names a part that is not here or is refused.
  absl::StatusOr<Gradients> GradientsOf(const v1::CommitStep& commit, const ConsistencyPolicy& policy) const;
  // The step is committed; the next one is open and has no parts. `answer` gets the verdict for each part's
  // waiters.
  void Commit(const v1::CommitStep& commit,
              const std::function<void(const Verdict& verdict, std::vector<Waiter>& waiters)>& answer);
  // The verdict for a repeat of a push whose step is no longer open: OK, REFUSED or STEP_PAST.
  Verdict VerdictAt(uint64_t step, uint32_t part) const;

  // Answers and removes the waiters for which `which` holds.
  void EndWaiters(const std::function<bool(const Waiter&)>& which,
                  const std::function<void(uint32_t part, const Waiter&)>& answer);
  void ForEachWaiter(const std::function<void(uint32_t part, const Waiter&)>& visit) const;

  // The commit of the open step, which waits for memory, with the pins and the checkpoint of the resulting
  // version.
  struct LateCommit {
    v1::CommitStep commit;
    absl::Time since;
    std::vector<v1::PinVersion> pins;
    std::optional<v1::FreezeCheckpoint> freeze;
    std::optional<v1::TakeCheckpoint> checkpoint;
  };
  std::optional<LateCommit> late_commit;

  // To and from a checkpoint: only the commits, since a checkpoint is taken between two steps.
  void Save(v1::ShardState& state) const;
  void Restore(const v1::ShardState& state);

 private:
  struct Part {
    Slab gradient;
    PushedRows rows;
    uint64_t examples = 0;
    std::string refusal;
    std::vector<Waiter> waiters;
  };
  std::map<uint32_t, Part> parts_;
  uint64_t row_bytes_ = 0;
  std::map<uint64_t, std::vector<uint32_t>> commits_;  // by step
};

// sync with consistency.tables "async": which parts of the open step have their rows in the tables already,
// although their dense values wait for the commit. A part whose dense values are lost, because a checkpoint
// was taken meanwhile and restored, is pushed again, perhaps to other shards; its rows must not count again.
//
// Belongs to the shard's queue.
class EarlyRows {
 public:
  // Before anything else: which shard this is, of how many, and what the checkpoint knows, perhaps from
  // shards of other numbers.
  void Begin(uint32_t shard, uint32_t num_shards, const v1::ShardState& state);
  // The rows of this part are about to be applied: leaves those that are not in the tables. False: this shard
  // has had the part, and its version of the tables counts it.
  bool Take(uint32_t part, PushedRows& rows);
  // The parts that this shard has had.
  size_t taken() const { return taken_; }
  // The step is committed: its parts cannot come again.
  void Commit();

  void Save(v1::ShardState& state) const;

 private:
  bool IsOwn(const v1::AppliedRows& rows) const {
    return rows.shard() == shard_ && rows.num_shards() == num_shards_;
  }

  uint32_t shard_ = 0, num_shards_ = 1;
  std::vector<v1::AppliedRows> applied_;
  size_t taken_ = 0;  // of applied_: those of this shard
};

}  // namespace weir
