#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// Reads a file that holds a secret, or the first `most_bytes` + 1 of it if it is larger. It must be a regular
// file of this user's or of root's, perhaps behind symbolic links, as Kubernetes mounts a Secret. Neither
// others nor the group may have access, except that the group may read a file of root's. FailedPrecondition:
// there is no such file, it cannot be read, or others may use it; the message begins with `what` ("the token
// file") and the path.
absl::StatusOr<std::string> ReadPrivateFile(absl::string_view what, const std::string& path,
                                            size_t most_bytes);

}  // namespace weir
