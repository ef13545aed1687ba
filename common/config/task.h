#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The name of a task in a cluster: its job and its index there.
namespace weir {

struct Task {
  std::string type;  // "ps", "worker", "chief" or "evaluator"
  uint32_t index = 0;

  std::string ToString() const;  // "ps:0"
};

inline bool operator==(const Task& a, const Task& b) { return a.type == b.type && a.index == b.index; }

// The values of Task::type, for messages.
inline constexpr absl::string_view kTaskTypes = "ps, worker, chief (or master), evaluator";

// "ps:0" and so on; "chief" alone is "chief:0". InvalidArgument names `source`, such as "--task".
absl::StatusOr<Task> ParseTask(absl::string_view text, absl::string_view source);

// The Task::type that `job` means, or "" for an unknown job.
std::string CanonicalJob(absl::string_view job);

// All digits, no sign; "01" is 1, as Python's int() has it.
bool ParseIndex(absl::string_view text, uint32_t* index);

}  // namespace weir
