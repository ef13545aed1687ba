#pragma once

#include <chrono>

namespace weir {

struct CallLimits {
  // The longest time that a call may take, retries included.
  std::chrono::nanoseconds total{};
  // How long after the first failure to reach its peer a call gives the peer up.
  std::chrono::nanoseconds unreachable{};
};

// Limits of an attempt to connect, where each try makes a connection of its own: the limit of the first
// attempt, which doubles with each further one, and the longest.
constexpr std::chrono::seconds kFirstAttempt{1}, kLongestAttempt{16};

}  // namespace weir
