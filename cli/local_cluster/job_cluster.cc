#include "cli/local_cluster/job_cluster.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "cli/installation/task_environment.h"
#include "common/base/status_macros.h"

namespace weir {

absl::Status JobCluster::Prepare() {
  WEIR_ASSIGN_OR_RETURN(token_, JobToken::Random());
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  // An earlier job that was killed may have left its own.
  RemoveIfThere(File(kToken));
  RemoveIfThere(File(kCertificates));
  WEIR_RETURN_IF_ERROR(token_.Write(File(kToken)));
  if (!options_.tls) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(WriteTaskCertificates(File(kCertificates), options_.ps, options_.workers));
  WEIR_ASSIGN_OR_RETURN(tls_,
                        Tls::ReadIfGiven(TlsFilesIn(File(kCertificates), TaskIdentity("evaluator", 0))));
  return absl::OkStatus();
}

JobCluster::~JobCluster() {
  RemoveIfThere(File(kToken));
  RemoveIfThere(File(kCertificates));
}

absl::Status JobCluster::Restart(const std::string& task) {
  return absl::UnimplementedError(absl::StrCat(task, ": this cluster starts tasks again itself"));
}

void JobCluster::EndOne(const std::string& /*task*/, int /*signal*/) {}

std::string JobCluster::File(absl::string_view name) const {
  return absl::StrCat(options_.log_dir, "/", name);
}

absl::StatusOr<JobCluster::Task*> JobCluster::AddTask(const std::string& type, int index) {
  const auto color = static_cast<Console::Color>(static_cast<int>(Console::Color::kTask0) + tasks_.size());
  Task& task = tasks_.emplace_back();
  task.type = type;
  task.index = index;
  task.name = absl::StrCat(type, ":", index);
  TaskLog::Options log;
  log.task = task.name;
  log.path = File(absl::StrCat(type, "-", index, ".log"));
  log.verbose = options_.verbose;
  log.console = options_.console;
  log.color = color;
  WEIR_ASSIGN_OR_RETURN(task.log, TaskLog::Open(std::move(log)));
  return &task;
}

JobCluster::Task* JobCluster::Find(absl::string_view name) {
  const auto found = absl::c_find_if(tasks_, [&](const Task& t) { return t.name == name; });
  return found == tasks_.end() ? nullptr : &*found;
}

void JobCluster::WaitForWake(int also, absl::Duration limit) {
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {also, POLLIN, 0}};
  // An interrupted poll() needs no retry: the caller calls again.
  poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(std::max(limit, absl::ZeroDuration()))));
  eventfd_t ignored;
  eventfd_read(wake_.get(), &ignored);
}

void JobCluster::Wake() { eventfd_write(wake_.get(), 1); }

void JobCluster::ShowHeld(absl::Time until) {
  for (const Task& task : tasks_) {
    if (task.log != nullptr) task.log->ShowHeld(until);
  }
}

void JobCluster::Mute() {
  for (const Task& task : tasks_) {
    if (task.log != nullptr) task.log->Mute();
  }
}

std::vector<std::string> JobCluster::running() const {
  std::vector<std::string> names;
  for (const Task& task : tasks_) {
    if (!task.ended) names.push_back(task.name);
  }
  return names;
}

bool JobCluster::IsRunning(absl::string_view task) const {
  return absl::c_any_of(tasks_, [&](const Task& t) { return t.name == task && !t.ended; });
}

size_t JobCluster::CountRunning(absl::string_view type) const {
  return static_cast<size_t>(
      absl::c_count_if(tasks_, [&](const Task& t) { return t.type == type && !t.ended; }));
}

std::vector<std::string> JobCluster::LastLines(absl::string_view task) const {
  const auto found = absl::c_find_if(tasks_, [&](const Task& t) { return t.name == task; });
  return found == tasks_.end() || found->log == nullptr ? std::vector<std::string>()
                                                        : found->log->LastLines();
}

}  // namespace weir
