#pragma once

namespace weir {

// From now on a program that finds no memory on any of its threads, or no thread where a library wants one,
// says so and exits with kExitInternal, instead of the abort that an exception causes which nobody takes.
// Other such exceptions are faults of the program, and still abort. Called first in main; not in a library,
// which must not end the program of its user.
void EndOnExhaustion();

}  // namespace weir
