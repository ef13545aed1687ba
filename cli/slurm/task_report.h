#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cli/local_cluster/first_cause.h"

namespace weir {

// A report of `weir task` on a node to the program that started its step: one line of its output, between the
// lines of the task's program. srun brings these lines, so nobody polls files of a network disk.
struct TaskReport {
  std::string task;             // "ps:0"
  std::string step;             // SLURM's number of the step
  std::string address;          // of a server that has started; "": a worker
  std::optional<TaskExit> end;  // nullopt: the program has started. Without last_lines
};

std::string ReportLine(const TaskReport& report);
// nullopt: the line is no report.
std::optional<TaskReport> ParseReport(absl::string_view line);

}  // namespace weir
