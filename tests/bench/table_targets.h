#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// The demands on embedding tables and what was measured, as `./dev bench tables` prints and saves them.
class TableTargets {
 public:
  // Prints the value beside its target. `at_least`: the value must be at least the target; else at most.
  void Judge(const std::string& what, double value, double target, bool at_least) {
    const bool met = at_least ? value >= target : value <= target;
    std::printf("  %-54s %7.2f  target %g %s: %s\n", what.c_str(), value, target,
                at_least ? "at least" : "at most", met ? "met" : "MISSED");
    std::fflush(stdout);
    json["targets"].push_back({{"what", what}, {"value", value}, {"target", target}, {"met", met}});
    if (!met) missed += absl::StrCat(missed.empty() ? " " : "; ", what);
  }
  // Records that `what` could not be measured.
  void Fail(const std::string& what, const std::string& why) {
    std::printf("  %-54s FAILED: %s\n", what.c_str(), why.c_str());
    std::fflush(stdout);
    json["targets"].push_back({{"what", what}, {"error", why}, {"met", false}});
    missed += absl::StrCat(missed.empty() ? " " : "; ", what);
  }

  nlohmann::json json;
  std::string missed;
};

}  // namespace weir::bench
