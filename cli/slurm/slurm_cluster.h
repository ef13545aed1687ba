#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/local_cluster/first_cause.h"
#include "cli/local_cluster/local_cluster.h"
#include "cli/local_cluster/task_log.h"
#include "cli/slurm/task_report.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"

namespace weir {

// The tasks of one job in an allocation of SLURM, in two steps: the servers, then workers and evaluator. Each
// task is kept by `weir task` (slurm_task.h), whose reports and whose program's output srun brings here.
// Token and certificates lie in the job's folder while this object exists. One thread uses the object.
class SlurmCluster {
 public:
  struct Options {
    LocalCluster::Options job;  // but http_port; log_dir is the job's folder, which all nodes see
    std::string weir;           // this program
    std::string allocation;     // SLURM_JOB_ID
    int nodes = 1;              // of the allocation
    int restart_servers = 0, restart_workers = 0;
    int threads = 1;  // OMP_NUM_THREADS of a program of the user
  };
  // Makes the folder for this user alone, the token, and with TLS the certificates.
  static absl::StatusOr<std::unique_ptr<SlurmCluster>> Create(Options options);
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  absl::Status StartServers();
  // Missing() must be empty. Writes cluster.json into the folder, for `weir status`.
  absl::Status StartWorkers();
  // The tasks of started steps that have neither reported their start nor ended.
  std::vector<std::string> Missing() const;

  // As in LocalCluster. A task that has not reported its end has ended with its step; if it never started,
  // its last lines are srun's.
  std::vector<TaskExit> WaitForExits(int also, absl::Duration limit);
  // Sends SIGTERM to the tasks that run, of the servers' step alone or of all steps. From now on the end of
  // any task counts as our wish.
  void EndServers();
  void EndAll();
  // From now on the end of any task counts as our wish: SLURM itself ends the job.
  void ExpectEnd() { ending_ = true; }
  // Kills what runs.
  void Kill();
  void ShowHeld(absl::Time until);
  void Mute();

  // The tasks whose end WaitForExits has not returned.
  std::vector<std::string> running() const;
  std::vector<std::string> LastLines(const std::string& task) const;
  // The address of ps:0, once Missing() is empty.
  const std::string& coordinator_address() const { return addresses_.at("ps:0"); }
  const JobToken& token() const { return token_; }
  // The TLS of a reader of the job's status; null: the job has no TLS.
  const std::shared_ptr<const Tls>& tls() const { return tls_; }
  // Where ps:0 writes the job's summary.
  std::string summary_path() const;

 private:
  struct Step {
    std::vector<std::string> tasks;
    std::vector<std::unique_ptr<TaskLog>> logs;  // of these tasks
    std::string id;                              // SLURM's number, which the first report says; "" until then
    std::unique_ptr<Subprocess> srun;
    bool ended = false;
  };
  struct Event {
    size_t step;
    TaskReport report;  // with an empty task: the step's srun has ended with `srun`
    ProcessExit srun;
  };
  SlurmCluster(Options options, JobToken token, UniqueFd wake)
      : options_(std::move(options)), token_(std::move(token)), wake_(std::move(wake)) {}

  absl::Status Prepare();
  absl::Status StartStep(const std::string& type, const std::vector<std::string>& tasks, int restart,
                         std::vector<std::string> flags, const std::vector<std::string>& program);
  void OnLine(size_t number, const Step& step, absl::string_view line);
  void Add(Event event);
  void Handle(const Event& event, std::vector<TaskExit>* exits);
  void Cancel(const Step& step, const std::vector<std::string>& flags);
  std::string File(absl::string_view name) const;

  const Options options_;
  const JobToken token_;
  const UniqueFd wake_;  // eventfd: events_ has grown
  std::shared_ptr<const Tls> tls_;
  bool ending_ = false;
  int colors_ = 0;                                // of tasks so far
  std::map<std::string, std::string> addresses_;  // of the tasks that have started
  std::set<std::string> ended_;
  Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> said_ ABSL_GUARDED_BY(mutex_);  // by srun
  std::deque<Step> steps_;                                // last: its threads use what is above
};

}  // namespace weir
