#pragma once

#include <iostream>

#include "absl/strings/string_view.h"

namespace weir {

// Says that this test case, or the rest of it, cannot run on this machine. tools/count_tests.py finds the
// line in the report of Catch2, which holds what goes to std::cout, and nothing that goes to printf().
inline void SaySkipped(absl::string_view reason) { std::cout << "SKIPPED: " << reason << "\n" << std::flush; }

}  // namespace weir
