#pragma once

#include <string>
#include <vector>

namespace weir {

// What the control groups of this process say, its own group first and then each one above it, as far as this
// process sees them: the limits of all of them hold. These are the first lines of the file `file` (second
// version of control groups) or of `first_version` in the hierarchy of `controller`; groups without the file
// are left out. `root` is put before the paths of /proc and /sys.
std::vector<std::string> ControlGroupLines(const std::string& controller, const std::string& file,
                                           const std::string& first_version, const std::string& root = "");

}  // namespace weir
