#pragma once

#include "proto/parameter_server.pb.h"

namespace weir {

// Returns whether an exchange continues with its pull after this answer to its push. Any other answer ends
// it.
inline bool PullFollows(v1::Outcome push) {
  return push == v1::OK || push == v1::REFUSED || push == v1::DUPLICATE_BATCH || push == v1::STALE_VERSION;
}

}  // namespace weir
