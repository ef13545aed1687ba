#pragma once

namespace weir {

// ps:0 hears of each task at least twice a second. A task of which it has heard nothing for so long stands
// still, or is cut off: ps:0 names it, long before its lease ends.
inline constexpr double kSilentSeconds = 3;

}  // namespace weir
