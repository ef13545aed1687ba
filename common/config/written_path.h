#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// Paths as people write them, in a config, a flag or the environment.
//
//   file:///x             /x
//   ~ and ~/x             the home folder, and x in it (HOME)
//   s3://BUCKET/PREFIX    itself: object storage
//
// Text that only a shell replaces ($NAME, ${NAME}, ~user), other schemes, and file:// with a host are refused
// by name. So no folder gets such a name.

// Without file://. "~" stays, since another machine may read the path. InvalidArgument: the path is refused.
absl::StatusOr<std::string> CheckedPath(absl::string_view path);

// CheckedPath(), with the home folder of this process. InvalidArgument, too, if HOME is not set.
absl::StatusOr<std::string> ExpandedPath(absl::string_view path);

// A path in object storage.
struct ObjectName {
  std::string bucket, key;

  std::string ToString() const;  // "s3://BUCKET/KEY"
};

// True for "s3://...", a path in object storage.
bool IsObjectPath(absl::string_view path);
// InvalidArgument: the path is not s3://BUCKET/PREFIX. Says what a path must be, and this path.
absl::Status CheckObjectPath(absl::string_view path);
// Without slashes at the end of the key.
ObjectName ObjectNameOf(absl::string_view path);

}  // namespace weir
