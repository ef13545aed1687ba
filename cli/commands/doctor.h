#pragma once

namespace weir {

// `weir doctor`: prints what Weir finds on this machine (host_report.h). Returns the exit code: 0, whatever
// is found.
int RunDoctor(bool json);

}  // namespace weir
