#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weir {

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
