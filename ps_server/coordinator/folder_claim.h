#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/sync/mutex.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// A coordinator's claim to its job's folder, and what has to outlive it: DIR/coordinator/ holds records
// 00000001.json, 00000002.json and so on, each a CoordinatorMemory. The highest number counts. A record is
// made by giving a file that is whole and synced a name that must be free, which happens once on whatever
// file system (rename without replacement; link on NFS). So they are one sequence, in which nobody ever
// writes on what he has not read: whoever claims the folder takes the next number, and so does its holder
// with whatever it writes. A holder that has been replaced, however long it was away and wherever it hung,
// finds that number taken, or higher ones there, and learns by whom.
//
// The newest records stay and older ones are removed, so a number may come free again under somebody who
// fell far behind. Hence the look at what is the highest after each record that was made.
//
// Thread-safe; its calls block while the disk works.
class FolderClaim {
 public:
  struct Options {
    // Outlives the claim.
    FileSystem* file_system = nullptr;
    // The job's, which is there.
    std::string directory;
    // Who claims it.
    v1::FolderHolder holder;
    // Whether a holder runs for sure.
    std::function<bool(const v1::FolderHolder&)> certainly_runs;
  };

  // Takes the folder from whoever has it, unless that one runs for sure. `next` makes the first record of
  // what the one before had said (nothing: it is the first).
  // FailedPrecondition: its holder runs. DataLoss: the newest record is damaged. Unimplemented: only a newer
  // program can read it.
  using Next = std::function<v1::CoordinatorMemory(const v1::CoordinatorMemory& before)>;
  static absl::StatusOr<std::unique_ptr<FolderClaim>> Take(Options options, const Next& next);

  // What the one before had said.
  const v1::CoordinatorMemory& before() const { return before_; }

  // Makes a record of what `change` makes of the last one, durably. Once it has returned OK, nobody had
  // claimed the folder when it did. Aborted: somebody has; the message says who.
  absl::Status Write(const std::function<void(v1::CoordinatorMemory&)>& change);
  // Aborted: somebody else is seen to have claimed the folder. OK proves less than that of Write(): a network
  // file system may show what was there some seconds ago.
  absl::Status Look() const;

 private:
  struct Record {
    uint64_t number = 0;
    v1::CoordinatorMemory memory;
  };
  explicit FolderClaim(Options options);

  // Number 0: there is none. One of an earlier version of Weir may stand beside them.
  absl::StatusOr<Record> Newest() const;
  absl::StatusOr<uint64_t> Highest() const;
  // AlreadyExists, NotFound: somebody else was at work.
  absl::Status Make(const Record& record) const;
  void RemoveOld(uint64_t newest) const;
  absl::Status Replaced(const v1::CoordinatorMemory& by) const;
  std::string PathOf(uint64_t number) const;

  const Options options_;
  FileSystem& fs_;
  const std::string folder_;
  v1::CoordinatorMemory before_;

  Mutex mutex_;
  Record last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
