#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// The store of a job, which outlives an incarnation of the coordinator: the newest complete checkpoint, and
// the numbers that must never be used again. An open store belongs to one coordinator, whose incarnation is
// durable and higher than the incarnations of all earlier coordinators on this store.
//
// Thread-safe. The destructor waits for all operations that were begun, and for their callbacks.
class JobStore {
 public:
  // All numbers up to these. Each is used only once: membership epochs, and incarnations of members.
  struct Numbers {
    uint64_t epoch = 0;
    uint64_t incarnation = 0;
  };
  struct Opened {
    uint64_t coordinator_incarnation = 1;
    // Earlier incarnations may have used these.
    Numbers used;
    // This incarnation may use the numbers above `used` up to these, before it calls Reserve().
    Numbers reserved;
    // The job whose store this is.
    v1::JobIdentity job;
    // Absent: there is no checkpoint.
    std::optional<v1::CheckpointManifest> newest;
  };
  // Called once, on any thread; must not block.
  using Done = std::function<void(absl::Status)>;

  virtual ~JobStore() = default;

  // The store's state when this incarnation began.
  virtual const Opened& opened() const = 0;

  // Reserves the numbers up to these, durably: they may be used once `done` gets OK. One call should cover
  // many numbers, since it waits for the disk. Aborted: another coordinator has the store now; Begin() and
  // Commit() return Aborted for this, too.
  virtual void Reserve(const Numbers& up_to, Done done) = 0;

  // The folder of the checkpoint of this step, for messages.
  virtual std::string FolderOf(uint64_t step) const = 0;
  // One checkpoint at a time is under way. Begin: once it is done, shards may write. Commit: reads the
  // manifest's step, model, job and files. Then the checkpoint is durable, and old ones are removed.
  virtual void Begin(uint64_t step, Done done) = 0;
  virtual void Commit(v1::CheckpointManifest manifest, Done done) = 0;
  // The newest checkpoint is of this step, and a shard has found its files damaged or missing (`why`). Reads
  // all of that checkpoint. If it is damaged, marks it, and finds the newest whole checkpoint before it,
  // which becomes the newest. FailedPrecondition: the checkpoint is whole as this process sees it. DataLoss:
  // no whole checkpoint is left; the message says what was found in each. Aborted: as Reserve().
  using Found = std::function<void(absl::StatusOr<v1::CheckpointManifest>)>;
  virtual void PassOver(uint64_t step, const std::string& why, Found done) = 0;
  // A checkpoint that was begun has failed: removes its files as far as possible, before a later Begin() of
  // its step. A complete checkpoint stays.
  virtual void Discard(uint64_t step) = 0;
};

}  // namespace weir
