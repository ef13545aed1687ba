#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "common/threads/mutex.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// This process, as a holder from now on.
v1::FolderHolder ThisProcess();

// Whether the holder is a different process that certainly runs: a process of this machine that /proc shows
// as running and without a pending SIGKILL. A process that hangs or is stopped counts as running. Nothing is
// certain about processes of other machines.
bool CertainlyRuns(const v1::FolderHolder& holder);

// "process 4711 on gpu-3, since 2026-11-22T11:00:00Z".
std::string Describe(const v1::FolderHolder& holder);

// A coordinator's claim to its job's folder, and the data that must outlive the coordinator. DIR/coordinator/
// holds records 00000001.json, 00000002.json and so on, each a CoordinatorMemory. The record with the highest
// number counts.
//
// To make a record, a process gives a whole and synced file a name that must be free. On any file system only
// one process can do that (rename without replacement; link on NFS; a conditional PUT). A process that claims
// the folder takes the next number, and so does the holder for each record that it writes. So the records are
// one sequence, and each follows from records that its writer has read. If a holder was replaced, it finds
// its next number taken, or higher numbers, and learns by whom, wherever it hung.
//
// The newest records stay and older ones are removed, so a number may become free again for a process that
// fell far behind. Therefore a process that has made a record then looks for the highest number.
//
// Thread-safe. Calls block while the disk works.
class FolderClaim {
 public:
  struct Options {
    // Outlives the claim.
    FileSystem* file_system = nullptr;
    // The job's folder, which exists.
    std::string directory;
    // The process that claims the folder.
    v1::FolderHolder holder;
    // Whether a holder certainly runs.
    std::function<bool(const v1::FolderHolder&)> certainly_runs;
  };

  // Takes the folder from its holder, unless that process certainly runs. `next` makes the first record from
  // the last record of the previous holder (empty: there was none). FailedPrecondition: the holder runs.
  // DataLoss: the newest record is damaged. Unimplemented: only a newer program can read it.
  using Next = std::function<v1::CoordinatorMemory(const v1::CoordinatorMemory& before)>;
  static absl::StatusOr<std::unique_ptr<FolderClaim>> Take(Options options, const Next& next);

  // The last record of the previous holder.
  const v1::CoordinatorMemory& before() const { return before_; }
  // The number of the newest record of this claim. No other claim has used this number for anything.
  uint64_t number() const;

  // Changes the last record with `change`, and writes the result durably as the next record. OK: no other
  // process had claimed the folder when the record was made. Aborted: another has; the message says which.
  absl::Status Write(const std::function<void(v1::CoordinatorMemory&)>& change);
  // Aborted: another process has claimed the folder. OK proves less than OK from Write(): a network file
  // system may show the state of some seconds ago.
  absl::Status Look() const;

 private:
  struct Record {
    uint64_t number = 0;
    v1::CoordinatorMemory memory;
  };
  explicit FolderClaim(Options options);

  // The newest record. Number 0: there is none, but perhaps the record of an earlier version of Weir.
  absl::StatusOr<Record> Newest() const;
  absl::StatusOr<uint64_t> Highest() const;
  // Makes the record. AlreadyExists, NotFound: another process has made or removed records meanwhile.
  absl::Status Make(const Record& record) const;
  void RemoveOld(uint64_t newest) const;
  absl::Status Replaced(const v1::CoordinatorMemory& by) const;
  std::string PathOf(uint64_t number) const;

  const Options options_;
  FileSystem& fs_;
  const std::string folder_;
  v1::CoordinatorMemory before_;

  mutable Mutex mutex_;
  Record last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
