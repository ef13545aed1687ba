#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weir {

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

}  // namespace weir
