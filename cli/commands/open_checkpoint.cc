#include "cli/commands/open_checkpoint.h"

#include <cstdio>

#include "cli/report/format.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

constexpr int kExitDamaged = 1;

}  // namespace

absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder) {
  FileSystem& files = AnyStorage();
  absl::StatusOr<FoundCheckpoint> found = ResolveCheckpoint(files, path);
  if (!found.ok()) return found.status();
  for (const std::string& refused : found->refused) {
    std::fprintf(stderr, "warning: passed over: %s\n", Printable(refused).c_str());
  }
  *folder = found->folder;
  return CheckpointReader::Open(files, found->folder);
}

int CheckpointExitCode(const absl::Status& status) {
  return absl::IsDataLoss(status)            ? kExitDamaged
         : absl::IsResourceExhausted(status) ? kExitStorage
         : absl::IsUnavailable(status)       ? kExitPeerLost
                                             : kExitConfig;
}

}  // namespace weir
