#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/contest.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// `weir bench wire`: the speed of contestants, on one host or two, over sizes, layouts and optimizers.
struct WireTableOptions {
  std::vector<int64_t> sizes;        // bytes of weights
  std::vector<std::string> layouts;  // "2x4": servers x workers
  std::vector<std::string> optimizers;
  // Names of kWireContestants. With two hosts, contestants that need one host are left out.
  std::vector<std::string> contestants;
  std::string certificates;  // for "weir tls": a folder of `weir certs init`
  int rounds = 5;
  double turn_seconds = 0.25;
  bool two_hosts = false;
};
extern const std::vector<std::string> kWireContestants;

// "1KB", "64KB", "1GB": a power of 1024 times a number. InvalidArgument says what is allowed.
absl::StatusOr<int64_t> ParseSize(const std::string& text);
std::string FormatSize(int64_t bytes);
// "2x4" -> {2, 4}.
absl::StatusOr<std::pair<int, int>> ParseLayout(const std::string& text);

// Prints the table as it grows, and returns it as JSON. A contestant that cannot run shows its error.
absl::StatusOr<nlohmann::json> PrintWireTable(const WireTableOptions& options, ServerHost* host);

}  // namespace weir::bench
