#pragma once

#include <string>
#include <vector>

namespace weir {

// `weir bench ARGS`: becomes the program weir_bench, which is found beside this one. Returns an exit code
// only where that cannot be.
int RunBench(const std::vector<std::string>& args);

}  // namespace weir
