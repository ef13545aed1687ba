#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "ps_server/coordinator/folder_holder.h"
#include "ps_server/coordinator/job_store.h"

namespace weir {

// A JobStore in a folder: the checkpoints, and the records of who has the folder (folder_claim.h). The
// numbers are reserved in blocks; an incarnation that ends early leaves the rest of its blocks unused.
//
// A store that was replaced can do nothing any more that its successor would notice, wherever in an operation
// it hung: Begin and Commit say first, in a record, in which checkpoint's folder they are at work, and hold
// that folder. The successor removes it, with whatever is in it, before it looks for the newest checkpoint.
// So a commit is over before the successor looks, or it never takes effect.
class JobStoreOnDisk {
 public:
  struct Options {
    // Outlives the store.
    FileSystem* file_system = &FileSystem::Posix();
    // Is made if it is not there.
    std::string directory;
    // The newest so many checkpoints are kept. At least 1.
    int keep = 3;
    // Who opens the store, and whether somebody who has it runs for sure (folder_holder.h).
    v1::FolderHolder holder = ThisProcess();
    std::function<bool(const v1::FolderHolder&)> certainly_runs = CertainlyRuns;
    // Runs what blocks, one after another in order, and all of it before the store's destructor is called.
    // Default: a thread of the store.
    std::function<void(std::function<void()>)> run;
  };

  // Begins a new incarnation of the coordinator, durably. FailedPrecondition: another process has the folder,
  // and runs for sure. DataLoss: the newest record is damaged, or there are checkpoints and all are.
  // Unimplemented: it takes a newer program to read one of them.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(Options options);
};

}  // namespace weir
