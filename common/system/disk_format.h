#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weir {

// Whatever is written to disk for later versions of Weir says which format it has, major.minor. A minor
// version adds fields, which an earlier reader ignores. A reader can tell nothing of a later major version,
// so it refuses the file. It never passes the file over for something older, which would lose progress
// silently.
struct DiskFormat {
  // 0 in files from before there were versions, which are 1.0.
  uint64_t major = 0;
  uint64_t minor = 0;
};

// Unimplemented: only a newer Weir can read `path`, a `what`, because its major version is later than
// `known`.
inline absl::Status CheckMajor(absl::string_view path, absl::string_view what, DiskFormat found,
                               DiskFormat known) {
  if (found.major <= known.major) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(path, ": this ", what, " has format ", found.major, ".",
                                               found.minor, "; this Weir reads formats up to ", known.major,
                                               ".x. Use the version of Weir that wrote it, or a later one"));
}

// For a file that cannot be read though its checksum fits: if its minor version is later, the file is not
// damaged, but holds something that this program does not know.
inline bool IsLater(DiskFormat found, DiskFormat known) {
  return found.major == known.major && found.minor > known.minor;
}

}  // namespace weir
