#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// The name of a task in a cluster: its job and its index there.
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

// --task=pod: the task that a pod's own name says, in a cluster that gives pods names with an index.

// The value of --task that asks for it.
inline constexpr absl::string_view kTaskOfPod = "pod";

struct Pod {
  std::string name;              // "weir-ps-1"
  std::string source;            // where the name comes from: "POD_NAME" or "the host name"
  std::string completion_index;  // JOB_COMPLETION_INDEX, which the pods of an Indexed Job have; else empty

  // This process's: POD_NAME from the environment, or else the host name without its domain.
  static Pod Current();
};

// A task, and the first label of its host: the name of its pod.
struct PodOfTask {
  Task task;
  std::string name;
};

// The task among `tasks` whose pod `pod` is. An Indexed Job's pod is JOB-INDEX-SUFFIX, and its host
// JOB-INDEX: the suffix does not count where completion_index agrees with the index. InvalidArgument: no task
// fits, or several do; the message begins with `source`, such as "--task=pod", and names `cluster`, the place
// of the spec.
absl::StatusOr<Task> FindTaskOfPod(const Pod& pod, const std::vector<PodOfTask>& tasks,
                                   absl::string_view source, absl::string_view cluster);

}  // namespace weir
