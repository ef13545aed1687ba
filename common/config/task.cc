#include "common/config/task.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/json_document.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

// "weir-worker-3" of "weir-worker-3-x7k2p", if that is the pod's name in an Indexed Job; else "".
std::string WithoutSuffix(const Pod& pod) {
  const std::string name = pod.name.substr(0, pod.name.rfind('-'));
  const bool agrees =
      !pod.completion_index.empty() && absl::EndsWith(name, absl::StrCat("-", pod.completion_index));
  return agrees ? name : "";
}

// Splits "weir-ps-3" into "weir-ps" and 3.
bool SplitOrdinal(absl::string_view name, absl::string_view* base, uint32_t* ordinal) {
  const size_t dash = name.rfind('-');
  if (dash == absl::string_view::npos || !ParseIndex(name.substr(dash + 1), ordinal)) return false;
  *base = name.substr(0, dash);
  return true;
}

// "weir-ps-0..weir-ps-1 (ps), weir-worker-0 (worker)".
std::string ListNames(const std::vector<PodOfTask>& tasks) {
  if (tasks.empty()) return "none, since it has no host names";
  std::map<std::string, std::vector<absl::string_view>> by_job;
  for (const PodOfTask& known : tasks) by_job[known.task.type].push_back(known.name);
  std::vector<std::string> lists;
  for (const auto& [job, names] : by_job) {
    lists.push_back(absl::StrCat(names.front(), names.size() > 1 ? absl::StrCat("..", names.back()) : "",
                                 " (", job, ")"));
  }
  return absl::StrJoin(lists, ", ");
}

// The task that a pod beyond the spec's count would be; nullptr: its name has another reason not to fit.
// `count`: how many there are.
const PodOfTask* NeighbourOf(absl::string_view name, const std::vector<PodOfTask>& tasks, uint32_t* ordinal,
                             size_t* count) {
  absl::string_view base;
  if (!SplitOrdinal(name, &base, ordinal)) return nullptr;
  const PodOfTask* neighbour = nullptr;
  *count = 0;
  for (const PodOfTask& known : tasks) {
    absl::string_view known_base;
    uint32_t ignored;
    if (!SplitOrdinal(known.name, &known_base, &ignored) || known_base != base) continue;
    if (neighbour == nullptr) neighbour = &known;
    *count += known.task.type == neighbour->task.type;
  }
  return neighbour;
}

}  // namespace

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

Pod Pod::Current() {
  Pod pod;
  if (std::string name = EnvironmentValue("POD_NAME"); !name.empty()) {
    pod.name = std::move(name);
    pod.source = "POD_NAME";
  } else {
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    const absl::string_view whole = host;
    pod.name = std::string(whole.substr(0, whole.find('.')));
    pod.source = "the host name";
  }
  pod.name = absl::AsciiStrToLower(pod.name);
  pod.completion_index = EnvironmentValue("JOB_COMPLETION_INDEX");
  return pod;
}

absl::StatusOr<Task> FindTaskOfPod(const Pod& pod, const std::vector<PodOfTask>& tasks,
                                   absl::string_view source, absl::string_view cluster) {
  const std::string short_name = WithoutSuffix(pod);
  std::vector<std::string> fitting;
  const PodOfTask* found = nullptr;
  for (const PodOfTask& known : tasks) {
    if (known.name != pod.name && known.name != short_name) continue;
    found = &known;
    fitting.push_back(known.task.ToString());
  }
  if (fitting.size() == 1) return found->task;

  const std::string who = absl::StrCat(source, ": the pod ", JsonQuote(pod.name), " (from ", pod.source, ")");
  if (fitting.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, " is ", absl::StrJoin(fitting, " and also "), " of the cluster at ", cluster,
                     "; give the jobs names there whose first parts differ, or this task --task=TYPE:INDEX"));
  }
  uint32_t ordinal;
  size_t count;
  const std::string& name = short_name.empty() ? pod.name : short_name;
  if (const PodOfTask* neighbour = NeighbourOf(name, tasks, &ordinal, &count)) {
    const std::string& job = neighbour->task.type;
    return absl::InvalidArgumentError(absl::StrCat(
        who, " would be ", Task{job, ordinal}.ToString(), ", but the cluster at ", cluster, " has ", count,
        count == 1 ? " task" : " tasks", " of ", job, ", ", ListNames(tasks), "; raise the count of ", job,
        " there for all tasks, or scale these pods down to ", count));
  }
  return absl::InvalidArgumentError(absl::StrCat(who, " is no task of the cluster at ", cluster,
                                                 ", whose pods are ", ListNames(tasks),
                                                 "; correct the names there, or give --task=TYPE:INDEX"));
}

}  // namespace weir
