#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"
#include "ps_server/coordinator/checkpoints/folder_claim.h"
#include "ps_server/coordinator/job/job.h"

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

// A JobStore in a folder of a disk or of object storage. The folder has the checkpoints, and the records that
// say which process has the folder (folder_claim.h). Numbers are reserved in blocks; if an incarnation ends
// early, the rest of its blocks stays unused.
//
// Once a store is replaced, no operation of it has an effect on its successor, wherever the operation hung.
// Begin and Commit first write a record that names the checkpoint's folder in which they work, and hold that
// folder. The successor removes the folder, with all that is in it, before it looks for the newest
// checkpoint. So a commit is over before the successor looks, or never takes effect. In object storage, where
// no folder can be held, no other store ever uses the checkpoint's folder, and a reservation of the
// manifest's name takes the place of the hold (checkpoint_folder.h).
class JobStoreOnDisk {
 public:
  struct Options {
    // Outlives the store.
    FileSystem* file_system = &FileSystem::Posix();
    // Created if it does not exist.
    std::string directory;
    // The job that begins, if no job of this name has begun in the folder; otherwise that job continues.
    v1::JobIdentity job;
    // How many of the newest checkpoints are kept. At least 1.
    int keep = 3;
    // The process that opens the store, and whether a holder of the folder certainly runs (folder_claim.h).
    v1::FolderHolder holder = ThisProcess();
    std::function<bool(const v1::FolderHolder&)> certainly_runs = CertainlyRuns;
    // Runs functions that block, in order and one at a time, and all of them before the store's destructor is
    // called. Null: a thread of the store runs them.
    std::function<void(std::function<void()>)> run;
  };

  // Begins a new incarnation of the coordinator, durably. FailedPrecondition: another process has the folder,
  // and certainly runs. DataLoss: the newest record is damaged, or there are checkpoints and all are damaged.
  // Unimplemented: only a newer program can read the record or a checkpoint.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(Options options);
};

// The numbers that a job uses only once: membership epochs, and incarnations of members and readers. If the
// job has a store, it reserves numbers there before it uses them, a block at a time, so that no later
// coordinator uses them again.
//
// Belongs to the coordinator's queue, which does not wait for the store's disk: an action that lacks numbers
// continues when they are reserved.
class JobNumbers {
 public:
  using Done = std::function<void(const absl::Status&)>;
  struct Options {
    // Reserves all numbers up to these; calls `done` later, in the queue. Null: no store, so all are free.
    std::function<void(const JobStore::Numbers& up_to, Done done)> reserve;
    // More numbers are reserved. `needed`: an action has waited for them.
    std::function<void(bool needed)> reserved;
  };

  JobNumbers(const JobContext& job, const JobStore::Opened& opened, Options options)
      : job_(job), options_(std::move(options)), last_(opened.used), reserved_(opened.reserved) {}

  // The last numbers that were used.
  uint64_t epoch() const { return last_.epoch; }
  uint64_t incarnation() const { return last_.incarnation; }
  // The last numbers that are reserved.
  const JobStore::Numbers& reserved() const { return reserved_; }

  // Whether `count` more of each may be used. If not, asks the store for them, and they are needed().
  bool Need(uint64_t count);
  bool needed() const { return needed_; }
  // Call these only for numbers that Need() has confirmed.
  uint64_t NextEpoch() { return ++last_.epoch; }
  uint64_t NextIncarnation() { return ++last_.incarnation; }
  // Asks for numbers well ahead, so that the job continues while the disk is full or slow for a while. If an
  // action waits for numbers and the store has no room for them, asks again, for checkpoint.save_wait_seconds
  // at most. Call it from time to time.
  void Tick();

 private:
  // The store has no room for needed numbers: since when, when it is asked again, and for how many.
  struct Trouble {
    absl::Time since, next;
    uint64_t count;
  };
  bool Has(uint64_t count) const;
  // Asks for `count` more numbers, and a block beyond them. No effect while an answer is awaited.
  void Ask(uint64_t count);
  void OnAnswer(const absl::Status& status, uint64_t count, bool needed);
  void AskAgain(uint64_t count, const std::string& why);

  const JobContext& job_;
  const Options options_;
  JobStore::Numbers last_, reserved_;
  bool asking_ = false, needed_ = false;
  absl::Time next_ask_ahead_ = absl::InfinitePast();
  std::optional<Trouble> trouble_;
};

}  // namespace weir
