#pragma once

#include <string>
#include <vector>

namespace weir {

// The settings of this process's control groups, its own group first and then each group above, as far as
// this process sees them: the limits of all groups hold. Each setting is the first line of `file` (second
// version of control groups), or in the hierarchy of `controller` those of the files `first_version`, with a
// blank between two. Groups without one of the files are left out. `root` is put before the paths of /proc
// and /sys.
std::vector<std::string> ControlGroupLines(const std::string& controller, const std::string& file,
                                           const std::vector<std::string>& first_version,
                                           const std::string& root = "");

}  // namespace weir
