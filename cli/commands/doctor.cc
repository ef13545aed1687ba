#include "cli/commands/doctor.h"

#include <cstdio>

#include "cli/report/host_report.h"
#include "common/program/exit_codes.h"

namespace weir {

int RunDoctor(bool json) {
  const HostReport report = LookAtHost();
  std::fputs((json ? HostReportJson(report) : HostReportText(report)).c_str(), stdout);
  std::fflush(stdout);
  return kExitOk;
}

}  // namespace weir
