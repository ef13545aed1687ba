#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weir {

// ` (did you mean "layers"?)` for the candidate that is closest to `word`, "" if none is close.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace weir
