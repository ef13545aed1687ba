#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weir {

// The functions that a fuzz target defines. A target gives a reader of the product what a stranger could, and
// checks what must hold of the result, whatever the input is. It is a pure function of the input.

// Reads one input. Returns whether the reader took it. Ends the process (FuzzCheck) if the reader broke a
// promise.
bool ReadInput(absl::string_view input);

// Inputs that the reader takes, each. They are made by the product's own writers where it has some.
std::vector<std::string> Seeds();

// Words of the input's language, for mutations. May be empty.
std::vector<std::string> Words();

// Ends the process and prints `what`, the promise that was broken, unless it holds.
void FuzzCheck(bool holds, absl::string_view what);

}  // namespace weir
