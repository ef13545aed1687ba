#pragma once

#include "absl/strings/string_view.h"

namespace weir {

// Whether a bug of this name is to be had: always false in what ships. The simulation (tests/simulation)
// overrides it, to prove that its checker would catch the bug. For bugs that no seam of a test can plant; a
// call is one line, off the hot paths.
bool Planted(absl::string_view bug);

}  // namespace weir
