#include "common/checkpoint/whole_checkpoint.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_reader.h"

namespace weir {

absl::Status ReadWhole(FileSystem& fs, const std::string& folder) {
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, folder));
  return reader.Verify();
}

absl::StatusOr<FoundCheckpoint> FindWholeBefore(FileSystem& fs, const std::string& path, uint64_t below,
                                                const OnDamaged& damaged) {
  if (!IsFolderOfCheckpoints(fs, path)) {
    return absl::DataLossError(absl::StrCat(path,
                                            " names one checkpoint, so no other one is taken; name the ",
                                            "folder that it is in, or another checkpoint there"));
  }
  std::vector<std::string> seen;
  while (true) {
    absl::StatusOr<FoundCheckpoint> found = ResolveCheckpoint(fs, path, below);
    if (absl::IsNotFound(found.status())) {
      seen.emplace_back(found.status().message());
      return absl::DataLossError(absl::StrJoin(seen, "; "));
    }
    WEIR_RETURN_IF_ERROR(found.status());
    seen.insert(seen.end(), found->refused.begin(), found->refused.end());
    const absl::Status whole = ReadWhole(fs, found->folder);
    if (whole.ok()) {
      found->refused = std::move(seen);
      return found;
    }
    if (!IsDamage(whole)) return whole;
    seen.emplace_back(whole.message());
    if (damaged) damaged(found->folder, seen.back());
    below = found->manifest.step();
  }
}

}  // namespace weir
