#pragma once

#include <cstddef>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace weir {

// The first bytes of a text, at most `most`. If bytes are left out, the end says how many.
inline std::string Shortened(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  return absl::StrCat(text.substr(0, most), "... (", text.size() - most, " bytes more)");
}

// The names with commas between them. If there are more than `most`, the end says how many are left out.
template <typename Names>
std::string ShortList(const Names& names, size_t most = 8) {
  const size_t count = names.size();
  if (count <= most) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), std::next(names.begin(), most), ", "), " and ",
                      count - most, " more");
}

}  // namespace weir
