#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/integration/processes.h"

// Jobs of real processes that take checkpoints, whose servers and workers are killed and started again.
namespace weir {

class RecoveryRun {
 public:
  struct Options {
    uint32_t servers = 2;
    uint32_t workers = 2;
    std::string config;
    // Every task's --set, after the settings of this class: a directory for checkpoints, and times that suit
    // a busy machine.
    std::vector<std::string> set;
    // The directory of checkpoints; empty: a folder of this job's own.
    std::string directory;
  };
  // Starts all tasks.
  explicit RecoveryRun(const Options& options);

  TestJob& job() { return *job_; }
  const std::string& directory() const { return directory_; }

  // Waits until the job has committed this step (bounded, async: batches / workers) and is not done.
  v1::ClusterStatus WaitForStep(uint64_t step);
  // Waits until the job runs with all its workers, with or without a first checkpoint.
  v1::ClusterStatus WaitUntilWhole();
  // Takes a checkpoint now.
  v1::CheckpointReply TakeCheckpoint();

  // SIGKILL; the other tasks are not notified.
  void Kill(const std::string& task);
  void Restart(const std::string& task) { job_->Start(task); }
  // The arguments that start a server by hand with a cluster spec in which this server has a fresh address
  // and the others have their current ones. All later specs have that address.
  std::vector<std::string> ArgsElsewhere(const std::string& task);
  // The arguments that start a task with the newest of these specs.
  std::vector<std::string> ArgsWithNewSpec(const std::string& task) const;
  void RestartElsewhere(const std::string& task) { job_->StartWith(task, ArgsElsewhere(task), {}); }
  void RestartWithNewSpec(const std::string& task) { job_->StartWith(task, ArgsWithNewSpec(task), {}); }
  // The address in the newest spec.
  std::string AddressNow(const std::string& task) const;

  // All tasks that were not killed for good exit with 0.
  nlohmann::json WaitForEnd();

 private:
  const uint32_t workers_;
  const TestFolder folder_;
  const std::string directory_;
  std::unique_ptr<TestJob> job_;
  std::deque<ReservedPort> fresh_ports_;
  nlohmann::json spec_;
  std::string spec_path_;
};

}  // namespace weir
