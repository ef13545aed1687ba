#pragma once

namespace weir {

// exit() without the end of OpenBLAS, which would wait for ever for a thread of its own that has found no
// memory and tries on and on.
[[noreturn]] void ExitWithoutOpenBlas(int code);

}  // namespace weir
