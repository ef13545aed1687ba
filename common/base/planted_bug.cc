#include "common/base/planted_bug.h"

namespace weir {

__attribute__((weak)) bool Planted(absl::string_view /*bug*/) { return false; }

}  // namespace weir
