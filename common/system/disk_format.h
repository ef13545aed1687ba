#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weir {

// What is written to disk for later versions of Weir says of which format it is, major.minor. A minor version
// adds fields, which an earlier reader ignores. Of another major version nothing can be told, so it is
// refused, and never passed over in favour of something older, which would lose progress in silence.
struct DiskFormat {
  // 0 in files from before there were versions, which are 1.0.
  uint64_t major = 0;
  uint64_t minor = 0;
};

// Unimplemented: it takes a newer Weir to read `path`, a `what`, since it has a later major version than
// `known`.
inline absl::Status CheckMajor(absl::string_view path, absl::string_view what, DiskFormat found,
                               DiskFormat known) {
  if (found.major <= known.major) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(path, ": this ", what, " has format ", found.major, ".",
                                               found.minor, "; this Weir reads formats up to ", known.major,
                                               ".x. Use the version of Weir that wrote it, or a later one"));
}

// The same of a file that cannot be read though its checksum fits: with a later minor version it is not
// damaged, but says something that this program does not know.
inline bool IsLater(DiskFormat found, DiskFormat known) {
  return found.major == known.major && found.minor > known.minor;
}

}  // namespace weir
