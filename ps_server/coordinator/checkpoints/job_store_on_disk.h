#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "ps_server/coordinator/checkpoints/folder_claim.h"
#include "ps_server/coordinator/checkpoints/job_store.h"

namespace weir {

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

}  // namespace weir
