#pragma once

#include <cstdint>

#include "common/shared_memory/message_ring.h"
#include "common/system/unique_fd.h"

namespace weir {

// The descriptors that a process may hand over with a message, for inputs whose letters stand for it. The
// segment of 's' has kSegmentBytes.
//
//   s  a segment of shared memory      b  a page of doorbells
//   m  memory without seals            p  no memory at all
//
// Any other letter: nothing.
UniqueFd DescriptorOf(char letter);

inline constexpr uint64_t kSegmentBytes = 2 * kRingAreaPages;

}  // namespace weir
