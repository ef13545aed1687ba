#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/job_token.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.pb.h"
#include "tests/chaos/grpc_repeater.h"
#include "tests/history/history_log.h"
#include "tests/integration/bounded_proxy.h"

namespace weir {

// The programs ps_server and worker.
struct ChaosPrograms {
  std::string ps_server = "ps_server/ps_server";
  std::string worker = "worker/worker";
};

// One job of real processes on loopback in a folder that outlives this object: a log of each process's life,
// a history of each worker's, the servers' summary. Its processes die with this object. For one thread.
class ChaosJob {
 public:
  struct Options {
    ChaosPrograms programs;
    // Exists, and is empty.
    std::string folder;
    // The job's config.
    std::string config;
    uint32_t servers = 1, workers = 1;
    // Of each worker, besides --config and --history.
    std::vector<std::string> worker_args;
    // Of each server, besides --config and ps:0's --summary.
    std::vector<std::string> server_args;
    // Workers write histories.
    bool histories = true;
    // The job has a token, which all tasks find in a file.
    bool token = false;
    // How each worker reaches each server, and ps:0 the others: directly, through BreakingProxy, whose
    // connections break by themselves if `breaks`, or through GrpcRepeater.
    enum class Path { kDirect, kProxies, kRepeaters };
    Path path = Path::kDirect;
    bool breaks = false;
    uint64_t path_seed = 0;
  };
  static absl::StatusOr<std::unique_ptr<ChaosJob>> Create(Options options);

  // "ps:0", "ps:1", ..., "worker:0", ...
  const std::vector<std::string>& tasks() const { return tasks_; }
  const std::string& address(const std::string& task) const { return addresses_.at(task); }
  pid_t pid(const std::string& task) const { return processes_.at(task)->pid(); }
  // Starts a task; again if it was killed.
  absl::Status Start(const std::string& task);
  absl::Status StartAll();
  // SIGKILL; it is gone when this returns.
  void Kill(const std::string& task);
  void Signal(const std::string& task, int signal) { processes_.at(task)->Signal(signal); }

  // Of ps:0, if it answers.
  absl::StatusOr<v1::ClusterStatus> Status() const;
  // A checkpoint now; returns when it is complete.
  absl::Status TakeCheckpoint() const;
  // How the task ended; nullopt: it runs still at the deadline.
  std::optional<ProcessExit> WaitForExit(const std::string& task,
                                         std::chrono::steady_clock::time_point deadline);
  // Of the task's present life: what it printed; where a worker's history is.
  std::string Log(const std::string& task) const;
  std::string HistoryPath(const std::string& task) const;
  absl::StatusOr<nlohmann::json> Summary() const;
  // Of all workers' lives so far, once all have ended.
  absl::StatusOr<std::vector<HistoryEvent>> Histories() const;
  // The proxies between the task and its peers; with `peer`, between these two.
  std::vector<BreakingProxy*> Proxies(const std::string& task, const std::string& peer = "") const;
  // What happened on the paths, and how often.
  std::map<std::string, uint64_t> PathFaults() const;
  // By shard.
  std::vector<std::vector<RepeatedPush>> RepeatedPushes() const;

 private:
  struct WorkerLog {
    std::string task, path;
    bool killed = false;
  };
  explicit ChaosJob(Options options);
  absl::Status Reserve(const std::string& task);
  void OpenPaths();
  std::string TfConfig(const std::string& task) const;
  std::string TokenPath() const { return options_.folder + "/token"; }
  // The folder's files of the task's present life, without their ends.
  std::string Life(const std::string& task) const;

  const Options options_;
  JobToken token_;
  std::vector<std::string> tasks_;
  // Ports that nobody else is given, and that servers which set SO_REUSEADDR, as gRPC does, can listen on.
  std::map<std::string, UniqueFd> ports_;
  std::map<std::string, std::string> addresses_;
  // (who calls, which server).
  using Path = std::pair<std::string, std::string>;
  std::map<Path, std::unique_ptr<BreakingProxy>> proxies_;
  std::map<Path, std::unique_ptr<GrpcRepeater>> repeaters_;
  std::vector<WorkerLog> histories_;
  std::map<std::string, int> lives_;
  std::map<std::string, std::unique_ptr<Subprocess>> processes_;
};

}  // namespace weir
