#include "cli/commands/start.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/object_path.h"
#include "common/object_store/object_file_system.h"

namespace weir {
namespace {

absl::Status Refuse(absl::string_view field, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint.", field, ": ", path, what));
}

// The folder can be written to or, if it is not there, be made.
absl::Status CheckWritable(const std::string& directory) {
  if (IsObjectPath(directory)) return absl::OkStatus();
  std::filesystem::path there = directory;
  std::error_code error;
  while (!std::filesystem::exists(there, error) && there != there.parent_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, error)) {
    return Refuse("directory", directory, absl::StrCat(": ", there.string(), " is not a folder"));
  }
  if (access(there.c_str(), W_OK | X_OK) != 0) {
    return Refuse("directory", directory,
                  absl::StrCat(": cannot write to ", there.string(), ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FindResumed(const std::string& directory) {
  const auto found = LatestComplete(AnyStorage(), directory);
  if (found.ok()) return absl::StrCat("going on from ", Printable(found->folder));
  if (!absl::IsNotFound(found.status())) {
    return Refuse("directory", directory, absl::StrCat(": ", found.status().message()));
  }
  // A log of an earlier version of Weir, which took no checkpoint before the first push, begins with version
  // 0.
  WEIR_ASSIGN_OR_RETURN(const bool log, HoldsLog(AnyStorage(), directory));
  if (log)
    return absl::StrCat("going on from the log in ", Printable(directory), ", which begins with version 0");
  if (ResolveCheckpoint(AnyStorage(), directory).ok()) {
    return Refuse("directory", directory,
                  " is one checkpoint; --resume takes the folder that it is in, where the next ones go");
  }
  return Refuse("directory", directory, absl::StrCat(" has nothing to resume: ", found.status().message()));
}

absl::Status CheckNew(const std::string& directory) {
  const auto there = FindCheckpoints(AnyStorage(), directory);
  if (!there.ok()) return Refuse("directory", directory, absl::StrCat(": ", there.status().message()));
  const auto newest =
      std::find_if(there->rbegin(), there->rend(), [](const auto& c) { return c.has_manifest; });
  std::string what;
  if (newest != there->rend()) {
    what =
        absl::StrCat(" holds checkpoints of a job already, the newest of step ", FormatCount(newest->step));
  } else {
    WEIR_ASSIGN_OR_RETURN(const bool log, HoldsLog(AnyStorage(), directory));
    if (!log) return absl::OkStatus();
    what = " holds a log of a job's pushes already";
  }
  return Refuse(
      "directory", directory,
      absl::StrCat(what, "; go on with that job (--resume=", directory, ") or name another folder"));
}

}  // namespace

absl::StatusOr<std::string> FindStart(const v1::CheckpointConfig& checkpoint, bool resume) {
  if (checkpoint.has_directory()) WEIR_RETURN_IF_ERROR(CheckWritable(checkpoint.directory()));
  if (resume) return FindResumed(checkpoint.directory());
  if (checkpoint.has_directory()) WEIR_RETURN_IF_ERROR(CheckNew(checkpoint.directory()));
  if (!checkpoint.has_init_from()) return "";
  const auto found = ResolveCheckpoint(AnyStorage(), checkpoint.init_from());
  if (!found.ok()) {
    return Refuse("init_from", checkpoint.init_from(), absl::StrCat(": ", found.status().message()));
  }
  return absl::StrCat("starting with the weights of ", Printable(found->folder));
}

}  // namespace weir
