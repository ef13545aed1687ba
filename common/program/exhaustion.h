#pragma once

namespace weir {

// From now on the program exits with kExitInternal, and says why, if one of its threads finds no memory, or
// if a library gets no thread. Without this call, an exception that nobody catches would abort it. Other such
// exceptions are faults of the program, and still abort. Called first in main; not in a library, which must
// not end the program of its user.
void EndOnExhaustion();

}  // namespace weir
