#include "python/capi/folder_opening.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/sync/mutex.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

struct Openings {
  Mutex mutex;
  CondVar changed;
  std::set<std::string> folders ABSL_GUARDED_BY(mutex);
};

// Never destroyed: threads use them as long as the process runs.
Openings& All() {
  static Openings* const all = new Openings;
  return *all;
}

}  // namespace

FolderOpening::FolderOpening(std::string folder) : folder_(std::move(folder)) {
  Openings& all = All();
  MutexLock lock(all.mutex);
  if (all.folders.count(folder_) > 0) {
    LogWarning("an earlier call of this process still opens ", folder_,
               ", perhaps one that Ctrl-C has ended; waiting until its storage has answered");
  }
  while (!all.folders.insert(folder_).second) all.changed.Wait(all.mutex);
}

FolderOpening::~FolderOpening() {
  Openings& all = All();
  MutexLock lock(all.mutex);
  all.folders.erase(folder_);
  all.changed.NotifyAll();
}

}  // namespace weir
