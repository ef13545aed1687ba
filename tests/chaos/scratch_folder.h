#pragma once

#include <string>

namespace weir {

// Makes a new folder in that of temporary files, "PREFIX-XXXXXX", which outlives this process. Empty: none
// could be made.
std::string MakeScratchFolder(const std::string& prefix);

}  // namespace weir
