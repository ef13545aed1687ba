#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weir {

// A text of which at most `most` bytes are shown. What it leaves out is counted at its end.
inline std::string Shortened(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  return absl::StrCat(text.substr(0, most), "... (", text.size() - most, " bytes more)");
}

}  // namespace weir
