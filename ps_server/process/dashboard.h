#pragma once

#include "absl/strings/string_view.h"

namespace weir {

// A page that shows /status, asked for every second. No outside resources.
absl::string_view DashboardPage();

}  // namespace weir
