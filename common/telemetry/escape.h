#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace weir {

// `text` with each byte that is no part of valid UTF-8 replaced by U+FFFD.
std::string ValidUtf8(absl::string_view text);

// Appends `text` as a JSON string, quotes included; valid JSON whatever the bytes (invalid UTF-8 becomes
// U+FFFD).
void AppendJsonString(absl::string_view text, std::string& out);

}  // namespace weir
