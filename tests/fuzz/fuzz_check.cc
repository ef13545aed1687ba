#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz_target.h"

namespace weir {

void FuzzCheck(bool holds, absl::string_view what) {
  if (holds) return;
  fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(what.size()), what.data());
  abort();
}

}  // namespace weir
