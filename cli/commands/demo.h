#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// `weir demo`: one small job in each of the three modes, with 2 servers and 4 workers, as one table.
struct DemoOptions {
  uint64_t seed = 1;
  int seeds = 1;                       // runs seed, seed + 1, ...
  std::string config;                  // "": configs/digits.json
  std::vector<std::string> overrides;  // as in UpOptions
  std::string device = "auto";         // as in UpOptions
  std::string bin_dir;
  bool verbose = false;
};

// Returns the exit code: 0; 70 if, with the config that comes with Weir, a run misses 97.5% test accuracy;
// else the code of the first run that failed.
int RunDemo(const DemoOptions& options);

}  // namespace weir
