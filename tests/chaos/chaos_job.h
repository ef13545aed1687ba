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
#include "common/rpc/identity.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
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

// One job of real processes on loopback, in a folder that outlives this object: a log of each process, a
// history of each worker process, the servers' summary. The processes die with this object. For one thread.
class ChaosJob {
 public:
  struct Options {
    ChaosPrograms programs;
    // An existing, empty folder.
    std::string folder;
    // The job's config.
    std::string config;
    uint32_t servers = 1, workers = 1;
    // Each worker's arguments, besides --config and --history.
    std::vector<std::string> worker_args;
    // Each server's arguments, besides --config and ps:0's --summary.
    std::vector<std::string> server_args;
    // Workers write histories.
    bool histories = true;
    // The job has a token, which all tasks read from a file.
    bool token = false;
    // All tasks have certificates.
    bool tls = false;
    // The path from each worker to each server, and from ps:0 to the others: direct, through BreakingProxy,
    // whose connections break by themselves if `breaks`, or through GrpcRepeater.
    enum class Path { kDirect, kProxies, kRepeaters };
    Path path = Path::kDirect;
    bool breaks = false;
    uint64_t path_seed = 0;
  };
  static absl::StatusOr<std::unique_ptr<ChaosJob>> Create(Options options);

  // "ps:0", "ps:1", ..., "worker:0", ...
  const std::vector<std::string>& tasks() const { return tasks_; }
  std::string config_path() const { return options_.folder + "/job.json"; }
  // The flags by which a program proves that it is of the job: as anyone with the token, or as this identity.
  std::vector<std::string> Prove(Role role, uint32_t index) const;
  const std::string& address(const std::string& task) const { return addresses_.at(task); }
  pid_t pid(const std::string& task) const { return processes_.at(task)->pid(); }
  // Starts a task, also after it was killed.
  absl::Status Start(const std::string& task);
  absl::Status StartAll();
  // SIGKILL; returns when the process is gone.
  void Kill(const std::string& task);
  void Signal(const std::string& task, int signal) { processes_.at(task)->Signal(signal); }

  // ps:0's status, if it answers.
  absl::StatusOr<v1::ClusterStatus> Status() const;
  // Takes a checkpoint now; returns when it is complete.
  absl::Status TakeCheckpoint() const;
  // How the task ended; nullopt: it still runs at the deadline.
  std::optional<ProcessExit> WaitForExit(const std::string& task,
                                         std::chrono::steady_clock::time_point deadline);
  // Of the task's present process: its output; the path of a worker's history.
  std::string Log(const std::string& task) const;
  std::string HistoryPath(const std::string& task) const;
  absl::StatusOr<nlohmann::json> Summary() const;
  // The histories of all worker processes so far, once all have ended.
  absl::StatusOr<std::vector<HistoryEvent>> Histories() const;
  // The proxies between the task and its peers; with `peer`, between these two.
  std::vector<BreakingProxy*> Proxies(const std::string& task, const std::string& peer = "") const;
  // The faults on the paths, with their counts.
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
  std::string CertificateFolder() const { return options_.folder + "/certs"; }
  std::string TokenPath() const { return options_.folder + "/token"; }
  // The prefix of the files of the task's present process, in the folder.
  std::string PathPrefix(const std::string& task) const;

  const Options options_;
  JobToken token_;
  // This object's own part in the job's TLS; null: it has none.
  std::shared_ptr<const Tls> admin_;
  std::vector<std::string> tasks_;
  // Ports that the kernel gives to no other process, on which servers that set SO_REUSEADDR, as gRPC does,
  // can listen.
  std::map<std::string, UniqueFd> ports_;
  std::map<std::string, std::string> addresses_;
  // (caller, server).
  using Path = std::pair<std::string, std::string>;
  std::map<Path, std::unique_ptr<BreakingProxy>> proxies_;
  std::map<Path, std::unique_ptr<GrpcRepeater>> repeaters_;
  std::vector<WorkerLog> histories_;
  std::map<std::string, int> starts_;
  std::map<std::string, std::unique_ptr<Subprocess>> processes_;
};

}  // namespace weir
