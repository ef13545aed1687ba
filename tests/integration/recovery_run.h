#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/processes.h"

// Jobs of real processes that take checkpoints, whose servers and workers are killed and started again.
namespace weir {

class RecoveryRun {
 public:
  struct Options {
    uint32_t servers = 2;
    uint32_t workers = 2;
    std::string config;
    // For every task's --set, after those of this class: a directory for checkpoints, and times that suit a
    // busy machine.
    std::vector<std::string> set;
    // Where checkpoints go; empty: a folder of this job's own.
    std::string directory;
  };
  // Starts all tasks.
  explicit RecoveryRun(const Options& options);

  TestJob& job() { return *job_; }
  const std::string& directory() const { return directory_; }

  // Until the job has committed this step (bounded, async: batches / workers) and is not done.
  v1::ClusterStatus WaitForStep(uint64_t step);
  // Until it runs with all its workers, the first checkpoint there or not.
  v1::ClusterStatus WaitUntilWhole();
  // Takes a checkpoint now.
  v1::CheckpointReply TakeCheckpoint();

  // SIGKILL; the others are not told.
  void Kill(const std::string& task);
  void Restart(const std::string& task) { job_->Start(task); }

  // All tasks that were not killed for good exit with 0.
  nlohmann::json WaitForEnd();

 private:
  const uint32_t workers_;
  const TestFolder folder_;
  const std::string directory_;
  std::unique_ptr<TestJob> job_;
};

}  // namespace weir
