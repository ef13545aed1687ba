#pragma once

#include "absl/status/status.h"
#include "python/capi/weir_c.h"

namespace weir {

// The result of a function of weir_c.h that ended with `status`: NULL if `status` is OK.
weir_error* ErrorOf(const absl::Status& status);

// Whether this process was forked from the one that loaded the library. Then threads and connections are the
// parent's, so that nothing may be called or destroyed here.
bool Forked();
absl::Status ForkedError();

}  // namespace weir
