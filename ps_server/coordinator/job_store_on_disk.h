#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "ps_server/coordinator/job_store.h"

namespace weir {

// A JobStore in a folder: the checkpoints, and coordinator.json. The numbers are reserved in blocks; a life
// that ends early leaves the rest of its blocks unused.
class JobStoreOnDisk {
 public:
  struct Options {
    // Outlives the store.
    FileSystem* file_system = &FileSystem::Posix();
    // Is made if it is not there.
    std::string directory;
    // The newest so many checkpoints are kept. At least 1.
    int keep = 3;
    // Runs what blocks, one after another in order, and all of it before the store's destructor is called.
    // Default: a thread of the store.
    std::function<void(std::function<void()>)> run;
  };

  // Begins a new life of the coordinator, durably. DataLoss: coordinator.json is damaged, or there are
  // checkpoints and all are.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(Options options);
};

}  // namespace weir
