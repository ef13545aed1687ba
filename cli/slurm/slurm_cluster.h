#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/local_cluster/job_cluster.h"
#include "cli/slurm/task_report.h"
#include "common/system/subprocess.h"
#include "common/threads/mutex.h"

namespace weir {

// Runs a command of SLURM. Returns its output, or what it said as an error. DeadlineExceeded: `limit`.
absl::StatusOr<std::string> AskSlurm(Subprocess::Options command, std::chrono::seconds limit);
absl::StatusOr<std::string> AskSlurm(std::vector<std::string> words, std::chrono::seconds limit);
// The job of what `sbatch --parsable` prints: "12", with several clusters "12;name", after warnings.
std::string JobNumber(const std::string& submitted);

// Tasks in an allocation of SLURM, in two steps: the servers, then workers and evaluator. Each task is kept
// by `weir task` (slurm_task.h), whose reports and whose program's output srun brings here. A task that has
// not reported its end has ended with its step; if it never started, its last lines are srun's.
// With Allocation::array the workers are no tasks of this object, and SLURM keeps their output.
class SlurmCluster : public JobCluster {
 public:
  struct Allocation {
    std::string id;    // SLURM_JOB_ID
    std::string weir;  // this program
    int nodes = 1;
    int restart_servers = 0, restart_workers = 0;
    int threads = 1;  // OMP_NUM_THREADS of a program of the user
    // Workers are the elements of an array job of their own, submitted with these options of sbatch.
    bool array = false;
    std::vector<std::string> array_options = {};
  };
  // Makes the folder of logs, which all nodes see, for this user alone.
  static absl::StatusOr<std::unique_ptr<JobCluster>> Create(Options options, Allocation allocation);
  ~SlurmCluster() override;

  absl::Status StartServers() override;
  absl::StatusOr<std::vector<std::string>> Missing() override;
  // Writes cluster.json into the folder, for `weir status`.
  absl::Status StartWorkers() override;
  std::vector<TaskExit> WaitForExits(int also, absl::Duration limit) override;
  void EndAll() override;
  void Save() override;
  void Kill() override;
  void ExpectEnd() override { ending_ = true; }
  const std::string& coordinator_address() const override { return addresses_.at("ps:0"); }
  std::string summary_path() const override { return File(kSummary); }

 private:
  struct Step {
    std::vector<Task*> tasks;
    std::string id;  // SLURM's number, which the first report says; "" until then
    std::unique_ptr<Subprocess> srun;
    bool ended = true;       // srun has not begun, or has ended
    bool asked_end = false;  // by SIGTERM
  };
  struct Event {
    size_t step;
    TaskReport report;  // with an empty task: the step's srun has ended with `srun`
    ProcessExit srun;
  };
  SlurmCluster(Options options, Allocation allocation);

  absl::Status PrepareFolder();
  absl::Status StartStep(const std::string& type, const std::vector<Task*>& tasks, int restart,
                         const std::vector<std::string>& flags, const std::vector<std::string>& program);
  // The words of `weir task`.
  std::vector<std::string> TaskCommand(const std::string& type, int restart,
                                       const std::vector<std::string>& flags,
                                       const std::vector<std::string>& program) const;
  absl::Status SubmitArray(const std::vector<std::string>& flags, const std::vector<std::string>& program);
  // Cancels the elements of the array in this state; "": all.
  void CancelArray(const std::string& state);
  void OnLine(size_t number, const Step& step, absl::string_view line);
  void Add(Event event);
  void Handle(const Event& event, std::vector<TaskExit>* exits);
  void End(Step& step);
  void Cancel(const Step& step, const std::vector<std::string>& flags);
  void RunScancel(std::vector<std::string> words);

  const Allocation allocation_;
  bool ending_ = false;
  std::string array_;                             // SLURM's number of the array job; "": there is none
  std::map<std::string, std::string> addresses_;  // of the tasks that have started
  Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> said_ ABSL_GUARDED_BY(mutex_);  // by srun
  std::deque<Step> steps_;                                // last: its threads use what is above
};

}  // namespace weir
