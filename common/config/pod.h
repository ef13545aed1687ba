#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/task.h"

// --task=pod: the task that a pod's own name says, in a cluster that gives pods names with an index.
namespace weir {

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
