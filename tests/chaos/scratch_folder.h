#pragma once

#include <string>

namespace weir {

// A new folder below that of temporary files, "PREFIX-XXXXXX", which outlives this process. Empty: none can
// be made.
std::string MakeScratchFolder(const std::string& prefix);

}  // namespace weir
