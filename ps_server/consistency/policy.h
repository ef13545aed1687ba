#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace weir {

// One push, as the consistency of a shard sees it.
struct PushKey {
  uint32_t worker = 0;
  uint64_t clock = 0;
  // sync: which part of the step `clock`. Else 0.
  uint32_t part = 0;
};

enum class PushDecision {
  kApply,    // it is the next of its worker: apply it now
  kStage,    // keep it until its step commits
  kHold,     // pushes before it are missing: hold it and ask again later
  kRepeat,   // it was completed or staged before: the same answer as the first time
  kInvalid,  // no such push can come: too far ahead, or a part that the step does not have
};

enum class PullDecision {
  kReady,  // answer it with the newest version
  kWait,   // ask again later
  kPast,   // sync: its step has been committed without it
};

struct WorkerClockValue {
  uint32_t worker;
  // Its pushes that the shard has applied or disposed of.
  uint64_t clock;
};

// What a policy holds of a worker that it has ever admitted.
struct WorkerRecord {
  uint32_t worker;
  uint64_t clock;
  bool counts;
};

// How a shard couples its workers: what the three modes differ in. A pure state machine, without threads,
// time, I/O or messages; the shard calls it from one thread at a time. What the rest of Weir needs to know of
// a mode is common/protocol/mode_traits.h.
class ConsistencyPolicy {
 public:
  virtual ~ConsistencyPolicy() = default;

  // Goes on from what a checkpoint holds: at this version, with these records (bounded, async). Before all
  // else.
  virtual void Restore(uint64_t version, absl::Span<const WorkerRecord> records) = 0;
  // For a checkpoint, by rising worker.
  virtual std::vector<WorkerRecord> Records() const = 0;

  // A worker counts from now on. Its clock is `clock`, or what the shard holds of it if that is higher.
  virtual void Admit(uint32_t worker, uint64_t clock) = 0;
  // A worker no longer counts: nobody waits for it. What is recorded of its clock stays.
  virtual void Remove(uint32_t worker) = 0;
  // Remove, and the record goes too: another life of this worker begins.
  virtual void Forget(uint32_t worker) = 0;
  // The clock at which a worker that joins now starts: the slowest that counts (in sync the open step), or
  // the highest on record if none counts.
  virtual uint64_t JoinClock() const = 0;

  virtual PushDecision OnPush(const PushKey& push) const = 0;
  // The push was applied, staged or disposed of. Only after OnPush said kApply or kStage.
  virtual void Complete(const PushKey& push) = 0;
  // bounded, async: what the worker has pushed below this clock counts as completed, whether it came or not.
  // Returns its clock before. Without effect if that is not lower.
  virtual uint64_t Skip(uint32_t worker, uint64_t clock) = 0;
  // May a pull of this worker at this clock be answered?
  virtual PullDecision OnPull(uint32_t worker, uint64_t clock) const = 0;
  // The workers whose pushes such a pull lacks.
  virtual std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const = 0;
  // Of those that count, by rising worker.
  virtual std::vector<WorkerClockValue> Clocks() const = 0;

  // sync: the open step, once all its parts but the backups are completed, until Commit. Else nullopt.
  virtual std::optional<uint64_t> CompleteStep() const { return std::nullopt; }
  // sync: the open step is done and the next one opens.
  virtual void Commit() {}
};

// A held push may be so many clocks ahead of its worker's next one.
constexpr uint64_t kHoldWindow = 16;

// sync. R parts a step, of which `backups` may be missing; `total_batches` is the length of the job (batch =
// step * R + part), which may cut the last step short.
std::unique_ptr<ConsistencyPolicy> MakeSyncPolicy(uint32_t parts, uint64_t total_batches,
                                                  uint32_t backups = 0);
// bounded (stale synchronous parallel; Ho et al., NIPS 2013): a pull at clock c waits until each worker that
// counts has completed c - staleness pushes, and the caller c; with `prefetch` the caller, too, may lack its
// newest `staleness` ones.
std::unique_ptr<ConsistencyPolicy> MakeBoundedPolicy(uint64_t staleness, bool prefetch = false);
// async: a pull waits for nobody but the worker's own pushes.
std::unique_ptr<ConsistencyPolicy> MakeAsyncPolicy();

}  // namespace weir
