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

// sync: the parts of the open step that a shard has, with the calls that wait for the step's commit, and the
// numbers of the parts of the last committed steps, for repeats.
//
// Belongs to the shard's queue.
class StagedParts {
 public:
  // The commits of this many steps are kept.
  static constexpr size_t kRecorded = 2 * kHoldWindow;
  // At most this many calls wait for one part.
  static constexpr size_t kMaxWaiters = 2048;

  // A waiting call: a push, or a repeat of a push. A part belongs to the step, not to the worker that
  // computed it, so the part stays staged when its waiter ends.
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
  // The memory of the parts' rows, in bytes.
  uint64_t row_bytes() const { return row_bytes_; }
  // Adds a waiter for this staged part. ResourceExhausted: the part has too many waiters.
  absl::Status AddWaiter(uint64_t step, uint32_t part, Waiter waiter);
  // The report for the coordinator: which parts are staged, and which of them are refused.
  v1::StepStaged Report(uint64_t step) const;

  // The gradients of the step's update, in the order of the commit; valid until Commit().
  struct Gradients {
    std::vector<WeightedGradient> dense;
    std::vector<WeightedRows> rows;
  };
  // FailedPrecondition: the commit is not of the open step, or names a part that is not staged or is refused.
  absl::StatusOr<Gradients> GradientsOf(const v1::CommitStep& commit, const ConsistencyPolicy& policy) const;
  // Commits the step, and opens the next one. `answer` gets the verdict for each part's waiters.
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
    double weight = 0;  // in the mean of the step
    std::string refusal;
    std::vector<Waiter> waiters;
  };
  std::map<uint32_t, Part> parts_;
  uint64_t row_bytes_ = 0;
  std::map<uint64_t, std::vector<uint32_t>> commits_;  // by step
};

// sync with consistency.tables "async": the parts of the open step whose rows are in the tables already,
// although their dense values wait for the commit. If a checkpoint is taken between the two and restored, the
// dense values are lost. The part is pushed again, perhaps to other shards, but its rows count once.
//
// Belongs to the shard's queue.
class EarlyRows {
 public:
  // Call this first. `state`: from the checkpoint, whose shards may have been more or fewer.
  void Begin(uint32_t shard, uint32_t num_shards, const v1::ShardState& state);
  // The rows of this part are about to be applied: removes from `rows` the rows that are in the tables.
  // Returns false if this shard has had the part, so that the version of its tables counts the part.
  bool Take(uint32_t part, PushedRows& rows);
  // How many parts this shard has had.
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
  size_t taken_ = 0;  // how many entries of applied_ are of this shard
};

}  // namespace weir
