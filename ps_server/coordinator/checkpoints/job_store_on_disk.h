#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "ps_server/coordinator/checkpoints/folder_claim.h"
#include "ps_server/coordinator/checkpoints/job_store.h"

namespace weir {

// A JobStore in a folder, of a disk or of object storage: the checkpoints, and the records that say which
// process has the folder (folder_claim.h). Numbers are reserved in blocks; an incarnation that ends early
// leaves the rest of its blocks unused.
//
// A store that was replaced can do nothing any more that its successor would notice, wherever in an operation
// it hung. Begin and Commit first write a record that names the checkpoint's folder in which they work, and
// hold that folder. The successor removes the folder, with whatever is in it, before it looks for the newest
// checkpoint. So a commit is over before the successor looks, or never takes effect. In object storage, where
// no folder can be held, the checkpoint's folder is one that no other store ever uses, and a reservation of
// the manifest's name takes the place of the hold (checkpoint_folder.h).
class JobStoreOnDisk {
 public:
  struct Options {
    // Outlives the store.
    FileSystem* file_system = &FileSystem::Posix();
    // Created if it does not exist.
    std::string directory;
    // The job that begins, if none of this name has begun here; otherwise the job here goes on.
    v1::JobIdentity job;
    // How many of the newest checkpoints are kept. At least 1.
    int keep = 3;
    // The process that opens the store, and whether a process that has it certainly runs (folder_claim.h).
    v1::FolderHolder holder = ThisProcess();
    std::function<bool(const v1::FolderHolder&)> certainly_runs = CertainlyRuns;
    // Runs functions that block, one after another in order, and all of them before the store's destructor is
    // called. Default: a thread of the store.
    std::function<void(std::function<void()>)> run;
  };

  // Begins a new incarnation of the coordinator, durably. FailedPrecondition: another process has the folder,
  // and certainly runs. DataLoss: the newest record is damaged, or there are checkpoints and all are damaged.
  // Unimplemented: only a newer program can read one of them.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(Options options);
};

}  // namespace weir
