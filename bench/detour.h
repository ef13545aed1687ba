#pragma once

#include <string>

#include "absl/status/status.h"
#include "bench/contestant.h"
#include "bench/process.h"

namespace weir::bench {

// A child process's body: a TCP proxy on loopback in front of `server`. Reports {"address": ...}, then serves
// until it is killed.
absl::Status RunDetour(const std::string& server, const Detour& detour, Control& control);

}  // namespace weir::bench
