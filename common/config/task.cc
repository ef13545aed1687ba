#include "common/config/task.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/json_document.h"

namespace weir {

std::string Task::ToString() const { return absl::StrCat(type, ":", index); }

absl::StatusOr<Task> ParseTask(absl::string_view text, absl::string_view source) {
  const size_t colon = text.find(':');
  const absl::string_view index = colon == absl::string_view::npos ? "0" : text.substr(colon + 1);
  Task task;
  task.type = CanonicalJob(text.substr(0, colon));
  const bool needs_index = task.type == "ps" || task.type == "worker";
  if (task.type.empty() || (colon == absl::string_view::npos && needs_index) ||
      !ParseIndex(index, &task.index)) {
    return absl::InvalidArgumentError(absl::StrCat(source,
                                                   ": must be TYPE:INDEX, such as ps:0, with TYPE one of ",
                                                   kTaskTypes, "; got ", JsonQuote(text)));
  }
  return task;
}

std::string CanonicalJob(absl::string_view job) {
  if (job == "master") return "chief";
  for (const char* known : {"ps", "worker", "chief", "evaluator"}) {
    if (job == known) return known;
  }
  return "";
}

bool ParseIndex(absl::string_view text, uint32_t* index) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, index);
}

}  // namespace weir
