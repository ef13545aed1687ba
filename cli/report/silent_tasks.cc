#include "cli/report/silent_tasks.h"

#include "common/protocol/silence.h"

namespace weir {

std::vector<const v1::TaskStatus*> SilentTasks(const v1::ClusterStatus& status) {
  std::vector<const v1::TaskStatus*> silent;
  if (status.state() != v1::RUNNING && status.state() != v1::DRAINING) return silent;
  // The status lists servers first.
  for (const v1::TaskStatus& task : status.tasks()) {
    const bool member = task.phase() == v1::TASK_LIVE || task.phase() == v1::TASK_STANDBY;
    if (member && task.seconds_since_heard() > kSilentSeconds) silent.push_back(&task);
  }
  return silent;
}

}  // namespace weir
