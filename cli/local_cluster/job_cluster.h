#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/hosts/host_connection.h"
#include "cli/hosts/host_list.h"
#include "cli/installation/installation.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/local_cluster/task_log.h"
#include "cli/report/console.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/system/unique_fd.h"

namespace weir {

// The tasks of one job, wherever they run, each with its log here: what a supervisor does with them
// (cli/commands/job_supervisor.h). Token and certificates lie in the folder of logs while this object exists.
// One thread uses the object. No process outlives the object.
class JobCluster {
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
    int stop_fd = -1;               // readable: connecting with hosts ends (Cancelled); -1: none
    std::vector<Host> hosts;        // empty: all tasks run on this machine
    std::vector<int> worker_hosts;  // PlaceWorkers()
    HostAccess access;
    bool copy = false;          // Hosts::Options::copy
    std::string shared_folder;  // which all hosts with servers have to share; "": none
    int ps_port = 0;  // of the first server of each host, on which the others' follow; 0: any free ones
  };

  // The facts about a kind of cluster that a supervisor has to know.
  struct Traits {
    // One task may notice the loss of another before the other's end is seen, by at most this time.
    absl::Duration settle = absl::Milliseconds(300);
    absl::Duration end_limit = absl::Seconds(10);  // from SIGTERM to SIGKILL
    bool restarts = false;      // starts tasks again itself; Restart() and EndOne() are not called
    int notice = 0;             // the signal that announces the end of the time; 0: there is none
    bool ends = false;          // on SIGTERM the cluster itself ends the tasks, with SIGTERM
    bool free_workers = false;  // workers are no tasks of this object: they come and go
    // Of a task that Missing() names for long: what it has not done, and what to do.
    std::string missing = " opened no port";
    std::string hint = "this machine may be overloaded; then try again";
  };

  virtual ~JobCluster();
  JobCluster(const JobCluster&) = delete;
  JobCluster& operator=(const JobCluster&) = delete;

  const Traits& traits() const { return traits_; }

  virtual absl::Status StartServers() = 0;
  // The tasks that have not reported yet that they have started: "ps:1".
  virtual absl::StatusOr<std::vector<std::string>> Missing() = 0;
  // Starts workers and evaluator. Missing() must be empty.
  virtual absl::Status StartWorkers() = 0;
  // Starts again a task that has ended, with its flags and log. A server that had a port gets that port.
  virtual absl::Status Restart(const std::string& task);

  // Returns the tasks that ended since the last call, in the order of their ends. Waits until a task has
  // ended, the file descriptor `also` is readable, or `limit` is over.
  virtual std::vector<TaskExit> WaitForExits(int also, absl::Duration limit) = 0;

  // From now on the end of any task counts as our wish (TaskExit::was_ended), by each of these functions.
  // SIGTERM to all tasks.
  virtual void EndAll() = 0;
  // SIGTERM to ps:0, which takes a checkpoint and tells the other tasks.
  virtual void Save() = 0;
  // SIGKILL to all tasks.
  virtual void Kill() = 0;
  // Nothing is sent: the cluster itself ends the tasks (Traits::ends).
  virtual void ExpectEnd() = 0;
  // Sends the signal to one task alone. Only the end of this task counts as our wish.
  virtual void EndOne(const std::string& task, int signal);

  // Call TaskLog's functions of these names for each task.
  void ShowHeld(absl::Time until);
  void Mute();

  // The tasks whose end WaitForExits has not returned.
  std::vector<std::string> running() const;
  bool IsRunning(absl::string_view task) const;
  // Returns whether a task of this type ("ps", "worker", "evaluator") is running.
  bool Runs(absl::string_view type) const { return CountRunning(type) > 0; }
  size_t CountRunning(absl::string_view type) const;
  std::vector<std::string> LastLines(absl::string_view task) const;

  // A fresh token, for this job alone.
  const JobToken& token() const { return token_; }
  // The TLS of a reader of the job's status; null: the job has no TLS.
  const std::shared_ptr<const Tls>& tls() const { return tls_; }
  // Once Missing() is empty: the address of ps:0, and the URL of its dashboard. "": no http_port was asked
  // for.
  virtual const std::string& coordinator_address() const = 0;
  const std::string& dashboard() const { return dashboard_; }
  // Where ps:0 writes the job's summary.
  virtual std::string summary_path() const = 0;

 protected:
  struct Task {
    std::string type;
    int index = 0;
    std::string name;  // "worker:1"
    std::unique_ptr<TaskLog> log;
    bool ended = true;  // it has not begun, or WaitForExits has returned its end
  };

  JobCluster(Options options, Traits traits) : options_(std::move(options)), traits_(std::move(traits)) {}

  // Makes token and certificates.
  absl::Status Prepare();
  // Adds a task that has not begun, with a new log.
  absl::StatusOr<Task*> AddTask(const std::string& type, int index);
  Task* Find(absl::string_view name);
  // Waits for Wake(), which any thread may call, or as WaitForExits.
  void WaitForWake(int also, absl::Duration limit);
  void Wake();
  // In the folder of logs.
  std::string File(absl::string_view name) const;
  // Names of the job's files, in the folder of logs or of a host's agent.
  static constexpr char kToken[] = "token", kCertificates[] = "certs", kSummary[] = "summary.json";

  const Options options_;
  std::string dashboard_;

 private:
  const Traits traits_;
  JobToken token_;
  std::shared_ptr<const Tls> tls_;
  UniqueFd wake_;           // eventfd
  std::deque<Task> tasks_;  // in the order in which they were added
};

}  // namespace weir
