#pragma once

#include "absl/status/status.h"
#include "python/capi/weir_c.h"

namespace weir {

// What a function of weir_c.h returns: NULL if `status` is OK.
weir_error* ErrorOf(const absl::Status& status);

// Whether this process was forked from the one that loaded the library. Then threads and connections are the
// parent's, so that nothing may be called or destroyed here.
bool Forked();
absl::Status ForkedError();

}  // namespace weir
