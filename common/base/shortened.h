#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weir {

// The first bytes of a text, at most `most`. If bytes are left out, the end says how many.
inline std::string Shortened(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  return absl::StrCat(text.substr(0, most), "... (", text.size() - most, " bytes more)");
}

}  // namespace weir
