#include "cli/doctor.h"

#include <cstdio>

#include "cli/host_report.h"
#include "common/exit_codes.h"

namespace weir {

int RunDoctor(bool json) {
  const HostReport report = LookAtHost();
  std::fputs((json ? HostReportJson(report) : HostReportText(report)).c_str(), stdout);
  std::fflush(stdout);
  return kExitOk;
}

}  // namespace weir
