#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/hosts/hosts.h"
#include "cli/local_cluster/job_cluster.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"

namespace weir {

// Tasks as processes, on this machine or on hosts (cli/hosts). Servers bind free ports themselves and report
// them through files, so no port is ever guessed. No process outlives the object, even if this program is
// killed.
class LocalCluster : public JobCluster {
 public:
  // Connects with the hosts, too.
  static absl::StatusOr<std::unique_ptr<JobCluster>> Create(Options options);
  ~LocalCluster() override;

  absl::Status StartServers() override;
  absl::StatusOr<std::vector<std::string>> Missing() override;
  absl::Status StartWorkers() override;
  absl::Status Restart(const std::string& task) override;
  std::vector<TaskExit> WaitForExits(int also, absl::Duration limit) override;
  void EndAll() override;
  void Save() override;
  void Kill() override;
  void ExpectEnd() override { ending_ = true; }
  void EndOne(const std::string& task, int signal) override;
  const std::string& coordinator_address() const override { return ps_addresses_[0]; }
  // In memory, so that the summary can be shown even if the disk is full. Gone with this object.
  std::string summary_path() const override;

 private:
  struct TaskProcess {
    Task& task;
    int host = 0;              // of hosts_
    std::string cluster = "";  // in its TF_CONFIG
    int restarts = 0;          // earlier incarnations
    // Keeps the server's port from other processes between two incarnations: a socket that is bound and does
    // not listen.
    UniqueFd reserved_port = UniqueFd();
    std::shared_ptr<std::atomic<bool>> ending = nullptr;  // EndOne(); of this incarnation
    std::unique_ptr<Subprocess> process = nullptr;        // its threads use the task's log
  };
  explicit LocalCluster(Options options) : JobCluster(std::move(options), Traits()) {}

  absl::Status Start(const std::string& type, int index, const std::string& cluster);
  absl::Status Launch(TaskProcess& process);
  absl::Status StartHere(TaskProcess& process, HostConnection::Task start);
  absl::Status StartOnHost(const TaskProcess& process, HostConnection::Task start);
  std::vector<std::string> ArgsOf(const TaskProcess& process, const std::string& folder) const;
  void SignalAll(int signal);
  void Signal(const TaskProcess& process, int signal);
  absl::Status OpenHosts();
  HostNeeds NeedsOf(int host, const std::string& token) const;
  int HostOf(absl::string_view type, int index) const;
  // With a port, for a cluster spec.
  std::string AddressOn(int host, int port) const;
  // Where the job's files are on the task's machine.
  std::string FolderOf(const TaskProcess& process) const;
  TaskProcess* Process(absl::string_view task);

  UniqueFd summary_;
  std::atomic<bool> ending_{false};
  Mutex mutex_;
  std::vector<TaskExit> exits_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> ps_addresses_;  // by index; "" until it is known
  std::string shared_file_;                // HostNeeds::shared of hosts with servers
  std::deque<TaskProcess> processes_;      // its threads use what is above
  std::unique_ptr<Hosts> hosts_;           // null: this machine alone. Last: its threads use processes_
};

}  // namespace weir
