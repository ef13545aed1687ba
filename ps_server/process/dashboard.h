#pragma once

#include "absl/strings/string_view.h"

namespace weir {

// A page that shows /status and refreshes it every second. Uses no external resources.
absl::string_view DashboardPage();

}  // namespace weir
