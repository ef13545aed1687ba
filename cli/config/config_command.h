#pragma once

#include <string>
#include <vector>

namespace weir {

// `weir config check FILE --set ...`: one line on stdout for a valid config. Both commands return the
// process's exit code: 0, or 78 (kExitConfig) with every problem on stderr, one a line.
int RunConfigCheck(const std::string& path, const std::vector<std::string>& overrides);

// `weir config show FILE --set ...`: the effective config with its defaults, as JSON that can be used as a
// config itself; and on stderr a line about the memory that a server needs, and one about checkpoints.
int RunConfigShow(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace weir
