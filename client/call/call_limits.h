#pragma once

#include <chrono>

namespace weir {

struct CallLimits {
  // A call ends after so long at the latest, retries included.
  std::chrono::nanoseconds total{};
  // A call gives its peer up when so long has passed since the first failure to reach it.
  std::chrono::nanoseconds unreachable{};
};

// Attempts to connect, for who makes a connection for each try: the first, each further one twice as long as
// the one before, and the longest.
constexpr std::chrono::seconds kFirstAttempt{1}, kLongestAttempt{16};

}  // namespace weir
