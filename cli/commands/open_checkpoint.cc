#include "cli/commands/open_checkpoint.h"

#include <cstdio>

#include "cli/report/format.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

constexpr int kExitDamaged = 1;

absl::StatusOr<CheckpointReader> Open(const absl::StatusOr<FoundCheckpoint>& found, std::string* folder) {
  if (!found.ok()) return found.status();
  for (const std::string& refused : found->refused) {
    std::fprintf(stderr, "warning: passed over: %s\n", Printable(refused).c_str());
  }
  *folder = found->folder;
  return CheckpointReader::Open(AnyStorage(), found->folder);
}

}  // namespace

absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder) {
  return Open(ResolveCheckpoint(AnyStorage(), path), folder);
}

absl::StatusOr<CheckpointReader> OpenWholeBefore(const std::string& path, uint64_t step,
                                                 std::string* folder) {
  return Open(FindWholeBefore(AnyStorage(), path, step), folder);
}

int CheckpointExitCode(const absl::Status& status) {
  return absl::IsDataLoss(status)            ? kExitDamaged
         : absl::IsResourceExhausted(status) ? kExitStorage
         : absl::IsUnavailable(status)       ? kExitPeerLost
                                             : kExitConfig;
}

}  // namespace weir
