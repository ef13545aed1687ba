#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace weir {

// The content of a small file that a person wrote. NotFound, PermissionDenied or InvalidArgument (a folder,
// or more than 16 MiB), with the path in the message.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace weir
