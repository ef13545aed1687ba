#pragma once

#include <optional>
#include <string>
#include <vector>

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

// The content of a small file that a person wrote. NotFound, PermissionDenied or InvalidArgument (a folder,
// or more than 16 MiB), with the path in the message.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Values that people put into environment variables and files of one value: keys, tokens, names, addresses,
// paths. A Kubernetes Secret that was made with `echo`, or a file with CRLF, has a line end behind its value,
// which is no part of it.

// Without blanks and line ends around it.
std::string ValueIn(absl::string_view text);
// ValueIn() of an environment variable. Empty: it is not set, or has nothing else.
std::string EnvironmentValue(const char* variable);

// FailedPrecondition: a key or a name has a blank, a line end or another character that cannot be in it. The
// message has `name` (a variable, or a file), and the place, but not the value, which may be secret.
absl::Status CheckOneWord(absl::string_view name, absl::string_view value);

// ` (did you mean "layers"?)` for the candidate that is closest to `word`, "" if none is close.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates);

// N of "cuda:N". nullopt: `device` is no such name.
std::optional<int> CudaIndex(absl::string_view device);

// The value of --device as a list: {"auto"} alone, or one name for each replica of the model: "cpu" or
// "cuda:N", all of one kind. A name may come twice: two replicas on one device. InvalidArgument says what was
// seen and what is allowed.
absl::StatusOr<std::vector<std::string>> ParseDevices(absl::string_view text);

}  // namespace weir
