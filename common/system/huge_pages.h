#pragma once

#include <cstddef>
#include <memory>

namespace weir {

// Memory of this process with any contents, in huge pages where it spans one and the system allows them; at
// least 64-byte aligned. Its pages come from the system when they are first written. The last reference frees
// it.
std::shared_ptr<void> AllocateInHugePages(size_t bytes);

}  // namespace weir
