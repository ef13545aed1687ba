#include "cli/slurm/task_report.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weir {
namespace {

// No logger of Weir's begins a line so.
constexpr absl::string_view kMark = "@weir-task";

}  // namespace

std::string ReportLine(const TaskReport& report) {
  const std::string head = absl::StrCat(kMark, " ", report.task, " ", report.step, " ");
  if (!report.end.has_value()) return absl::StrCat(head, "at ", report.address);
  const TaskExit& end = *report.end;
  return absl::StrCat(head, "ended ", end.exit.code, " ", end.exit.signal, " ", end.seconds, " ",
                      end.restarts, " ", end.restarted ? 1 : 0);
}

std::optional<TaskReport> ParseReport(absl::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() < 5 || words[0] != kMark) return std::nullopt;
  TaskReport report;
  report.task = words[1];
  report.step = words[2];
  if (words[3] == "at" && words.size() == 5) {
    report.address = words[4];
    return report;
  }
  TaskExit end;
  end.task = report.task;
  int restarted = 0;
  if (words[3] != "ended" || words.size() != 9 || !absl::SimpleAtoi(words[4], &end.exit.code) ||
      !absl::SimpleAtoi(words[5], &end.exit.signal) || !absl::SimpleAtod(words[6], &end.seconds) ||
      !absl::SimpleAtoi(words[7], &end.restarts) || !absl::SimpleAtoi(words[8], &restarted)) {
    return std::nullopt;
  }
  end.restarted = restarted != 0;
  report.end = std::move(end);
  return report;
}

}  // namespace weir
