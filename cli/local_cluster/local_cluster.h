#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/hosts/hosts.h"
#include "cli/installation/installation.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/local_cluster/task_log.h"
#include "cli/report/console.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"

namespace weir {

// The tasks of one job as processes, on this machine or on hosts (cli/hosts), each with its log here. Servers
// bind free ports themselves and report them through files, so no port is ever guessed. Token and
// certificates lie in files while this object exists. One thread uses the object. No process outlives the
// object, even if this program is killed.
class LocalCluster {
 public:
  struct Options {
    Binaries binaries;
    std::string config;
    std::vector<std::string> program;    // with arguments, instead of `worker`; may be empty
    std::vector<std::string> overrides;  // of every task
    int ps = 1;
    int workers = 1;
    std::string device = "auto";  // --device of workers and evaluator
    bool evaluator = false;
    bool tls = false;               // with certificates made for this job alone
    std::optional<int> http_port;   // of ps:0
    std::string tensorboard_dir;    // of ps:0; may be empty
    std::string log_dir;            // exists
    bool verbose = false;           // shows all lines of all tasks
    Console* console = nullptr;     // outlives this
    std::vector<Host> hosts;        // empty: all tasks run on this machine
    std::vector<int> worker_hosts;  // PlaceWorkers()
    HostAccess access;
    bool copy = false;          // Hosts::Options::copy
    std::string shared_folder;  // which all hosts with servers have to share; "": none
    int ps_port = 0;  // of the first server of each host, on which the others' follow; 0: any free ones
  };
  // Connects with the hosts, too.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Create(Options options);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  absl::Status StartServers();
  // The servers that have not reported their port yet: "ps:1".
  absl::StatusOr<std::vector<std::string>> MissingServers();
  // Starts workers and evaluator. MissingServers() must be empty.
  absl::Status StartWorkers();
  // A fresh token, for this job alone.
  const JobToken& token() const { return token_; }
  // The TLS of a reader of the job's status; null: the job has no TLS.
  const std::shared_ptr<const Tls>& tls() const { return tls_; }
  // The address of ps:0, once MissingServers() is empty.
  const std::string& coordinator_address() const { return ps_addresses_[0]; }
  // The URL of ps:0's dashboard, once MissingServers() is empty. "": no http_port was asked for.
  const std::string& dashboard() const { return dashboard_; }

  // Starts again a task that has ended, with its flags and log. A server that had a port gets that port.
  absl::Status Restart(const std::string& task);

  // Returns the tasks that ended since the last call, in the order of their ends. Waits until a task has
  // ended, the file descriptor `also` is readable, or `limit` is over.
  std::vector<TaskExit> WaitForExits(int also, absl::Duration limit);
  // Sends the signal to all tasks. From now on the end of any task counts as our wish (TaskExit::was_ended).
  void EndAll(int signal);
  // Sends the signal to one task alone. From now on the end of any task counts as our wish.
  void EndFrom(const std::string& task, int signal);
  // Sends the signal to one task alone. Only the end of this task counts as our wish.
  void EndOne(const std::string& task, int signal);
  // Call TaskLog's functions of these names for each task.
  void ShowHeld(absl::Time until);
  void Mute();

  // The tasks whose end WaitForExits has not returned.
  std::vector<std::string> running() const;
  bool IsRunning(absl::string_view task) const;
  // Returns whether a task of this type ("ps", "worker", "evaluator") is running.
  bool Runs(absl::string_view type) const { return CountRunning(type) > 0; }
  size_t CountRunning(absl::string_view type) const;

  std::vector<std::string> LastLines(const std::string& task);
  // Where ps:0 writes the job's summary: in memory, so that the summary can be shown even if the disk is
  // full. Gone with this object.
  std::string summary_path() const;

 private:
  struct TaskProcess {
    std::string type;
    int index = 0;
    std::string name;     // "worker:1"
    int host = 0;         // of hosts_
    std::string cluster;  // in its TF_CONFIG
    int restarts = 0;     // earlier incarnations
    bool ended = false;   // WaitForExits has returned it
    // Keeps the server's port from other processes between two incarnations: a socket that is bound and does
    // not listen.
    UniqueFd reserved_port;
    std::unique_ptr<TaskLog> log;
    std::shared_ptr<std::atomic<bool>> ending;  // EndOne(); of this incarnation
    std::unique_ptr<Subprocess> process;        // its threads use `log`
  };
  LocalCluster(Options options, JobToken token, UniqueFd wake)
      : options_(std::move(options)), token_(std::move(token)), wake_(std::move(wake)) {}

  absl::Status Start(const std::string& type, int index, const std::string& cluster);
  absl::Status Launch(TaskProcess& task);
  absl::Status StartHere(TaskProcess& task, HostConnection::Task start);
  absl::Status StartOnHost(const TaskProcess& task, HostConnection::Task start);
  std::vector<std::string> ArgsOf(const TaskProcess& task, const std::string& folder) const;
  void Signal(const TaskProcess& task, int signal);
  absl::Status OpenHosts();
  HostNeeds NeedsOf(int host, const std::string& token) const;
  int HostOf(absl::string_view type, int index) const;
  // With a port, for a cluster spec.
  std::string AddressOn(int host, int port) const;
  // Where the job's files are on the task's machine.
  std::string FolderOf(const TaskProcess& task) const;
  TaskProcess* Find(const std::string& task);
  std::string PortFile(int server) const;  // here
  std::string TokenFile() const;
  std::string CertificateFolder() const;
  absl::Status MakeCertificates();

  const Options options_;
  const JobToken token_;
  std::shared_ptr<const Tls> tls_;
  const UniqueFd wake_;  // eventfd: exits_ has grown
  UniqueFd summary_;
  std::atomic<bool> ending_{false};
  Mutex mutex_;
  std::vector<TaskExit> exits_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> ps_addresses_;  // by index; "" until it is known
  std::string dashboard_;
  std::string shared_file_;        // HostNeeds::shared of hosts with servers
  std::deque<TaskProcess> tasks_;  // its threads use what is above
  std::unique_ptr<Hosts> hosts_;   // null: this machine alone. Last: its threads use tasks_
};

}  // namespace weir
