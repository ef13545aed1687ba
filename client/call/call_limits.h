#pragma once

#include <chrono>

namespace weir {

struct CallLimits {
  // A call ends after so long at the latest, retries included.
  std::chrono::nanoseconds total{};
  // A call gives its peer up when so long has passed since the first failure to reach it.
  std::chrono::nanoseconds unreachable{};
};

}  // namespace weir
