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
  // sync: the part of step `clock`. Otherwise 0.
  uint32_t part = 0;
};

enum class PushDecision {
  kApply,    // the worker's next push: apply it now
  kStage,    // keep it until its step commits
  kHold,     // earlier pushes are missing: hold it and ask again later
  kRepeat,   // it was completed or staged before: the same answer as the first time
  kInvalid,  // such a push is impossible: too far ahead, or the step has no such part
};

enum class PullDecision {
  kReady,  // answer it with the newest version
  kWait,   // ask again later
  kPast,   // sync: its step has been committed without it
};

struct WorkerClockValue {
  uint32_t worker;
  // The number of its pushes that the shard has applied or disposed of.
  uint64_t clock;
};

// A policy's record of a worker that it has admitted at some time.
struct WorkerRecord {
  uint32_t worker;
  uint64_t clock;
  bool counts;
};

// How a shard couples its workers: the three modes differ in this class. A pure state machine, without
// threads, time, I/O or messages; the shard calls it from one thread at a time. common/protocol/mode_traits.h
// holds what the rest of Weir needs to know of a mode.
class ConsistencyPolicy {
 public:
  virtual ~ConsistencyPolicy() = default;

  // Continues from a checkpoint: at this version, with these records (bounded, async). Must be the first
  // call.
  virtual void Restore(uint64_t version, absl::Span<const WorkerRecord> records) = 0;
  // For a checkpoint, by rising worker.
  virtual std::vector<WorkerRecord> Records() const = 0;

  // A worker counts from now on. Its clock is `clock`, or the shard's record of it if that is higher.
  virtual void Admit(uint32_t worker, uint64_t clock) = 0;
  // sync: of a worker that counts, v1.Member.share.
  virtual void SetShare(uint32_t /*worker*/, uint32_t /*share*/) {}
  // A worker no longer counts: no pull waits for it. The record of its clock stays.
  virtual void Remove(uint32_t worker) = 0;
  // As Remove(), but removes the record too: a new incarnation of this worker begins.
  virtual void Forget(uint32_t worker) = 0;
  // The start clock of a worker that joins now: the slowest clock of the workers that count (in sync, the
  // open step), or the highest clock on record if none counts.
  virtual uint64_t JoinClock() const = 0;

  virtual PushDecision OnPush(const PushKey& push) const = 0;
  // The push was applied, staged or disposed of. Requires that OnPush() returned kApply or kStage for it.
  virtual void Complete(const PushKey& push) = 0;
  // bounded, async: the worker's pushes below this clock count as completed, whether they came or not.
  // Returns its previous clock. Without effect if that clock is not lower.
  virtual uint64_t Skip(uint32_t worker, uint64_t clock) = 0;
  // Whether a pull of this worker at this clock can be answered.
  virtual PullDecision OnPull(uint32_t worker, uint64_t clock) const = 0;
  // The workers whose pushes this pull still needs.
  virtual std::vector<uint32_t> WaitingFor(uint32_t worker, uint64_t clock) const = 0;
  // The clocks of the workers that count, by rising worker.
  virtual std::vector<WorkerClockValue> Clocks() const = 0;

  // sync: the open step, if all its parts except the backups are completed, until Commit(). Otherwise
  // nullopt.
  virtual std::optional<uint64_t> CompleteStep() const { return std::nullopt; }
  // sync: the open step is done and the next one opens.
  virtual void Commit() {}
};

// A held push may be at most this many clocks ahead of its worker's next one.
constexpr uint64_t kHoldWindow = 16;

// sync. Each step has `parts` parts, of which `backups` may be missing. `total_batches` is the length of the
// job (batch = step * parts + part), which may cut the last step short.
std::unique_ptr<ConsistencyPolicy> MakeSyncPolicy(uint32_t parts, uint64_t total_batches,
                                                  uint32_t backups = 0);
// bounded (stale synchronous parallel; Ho et al., NIPS 2013): a pull at clock c waits until each worker that
// counts has completed c - staleness pushes, and the caller c pushes. With `prefetch` the caller, too, may
// lack its newest `staleness` pushes.
std::unique_ptr<ConsistencyPolicy> MakeBoundedPolicy(uint64_t staleness, bool prefetch = false);
// async: a pull waits only for the worker's own pushes.
std::unique_ptr<ConsistencyPolicy> MakeAsyncPolicy();

}  // namespace weir
