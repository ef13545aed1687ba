#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weir {

// Quantities as people write them. Pure functions. InvalidArgument: says what was seen and what is allowed.

// "10Gbit", "100Mbit", "1.25GB": bits or bytes a second, to bytes a second. "0": no limit, which is 0.
absl::StatusOr<double> ParseBandwidth(const std::string& text);
// "50ms", "200us", "1.5s", "2min", to seconds; "0".
absl::StatusOr<double> ParseSeconds(const std::string& text);
// "8", "4,16,64", "1..256" (1 and its doublings up to 256), to rising whole numbers from 1 to `most`.
absl::StatusOr<std::vector<uint32_t>> ParseCounts(const std::string& text, uint32_t most);

// "4x": worker 0 takes 4 times as long. "4x:0.1": each batch does, with a probability of 0.1.
struct Straggler {
  double factor = 1;
  double share = 0;  // 0: one worker, always
};
absl::StatusOr<Straggler> ParseStraggler(const std::string& text);

}  // namespace weir
