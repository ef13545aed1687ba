#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/tls.h"
#include "common/system/subprocess.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.pb.h"

// Jobs of real processes: the ps_server and worker binaries, on loopback, in a folder of their own, each with
// its log in a file. A failure in here (a process that does not start, or does not end in time) fails the
// Catch2 test case, with the logs. For the main thread only.
namespace weir {

// After this time an operation counts as hanging. Generous: sanitized binaries on a busy machine.
constexpr std::chrono::seconds kHangLimit{60};

// The time from a failure to the exit of every other task, as in docs/guarantees.md. Sanitized binaries end
// more slowly.
#if defined(WEIR_ASAN) || defined(WEIR_TSAN)
constexpr std::chrono::seconds kEndLimit{30};
#else
constexpr std::chrono::seconds kEndLimit{10};
#endif

using Seconds = std::chrono::duration<double>;

class Stopwatch {
 public:
  Seconds Elapsed() const { return std::chrono::steady_clock::now() - start_; }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// `set` and `more` in one list, for --set.
std::vector<std::string> With(std::vector<std::string> set, const std::vector<std::string>& more);

// A folder below TEST_TMPDIR, removed with this object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // Returns the file's path.
  std::string Write(const std::string& name, const std::string& bytes) const;

 private:
  std::string path_;
};

std::string ReadWholeFile(const std::string& path);

// A loopback port that the kernel gives to no other process while this object lives: a socket that is bound,
// but does not listen. A server that sets SO_REUSEADDR, as gRPC does, can listen on the port meanwhile.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  std::string address() const;  // "127.0.0.1:PORT"
  // From now on the port is in use.
  void Listen();

 private:
  int socket_;
};

// One process, its output in a file. Killed with this object if it still runs.
class TestProcess {
 public:
  // `environment` is added to this process's environment, from which TF_CONFIG is removed.
  TestProcess(std::vector<std::string> args, std::map<std::string, std::string> environment,
              std::string log_path);

  int pid() const { return process_->pid(); }
  void Signal(int signal) { process_->Signal(signal); }
  // As a shell reports it: the exit code, or 128 + the signal.
  int Wait(std::chrono::milliseconds limit = kHangLimit);
  bool Ended();
  std::string log() const { return ReadWholeFile(log_path_); }
  void WaitForLog(const std::string& text);
  // Waits until the process has written this file, and returns its contents.
  std::string WaitForFile(const std::string& path);

 private:
  const std::string name_, log_path_;
  std::unique_ptr<Subprocess> process_;
};

// Runs a process to the end: exit status and output.
struct RunResult {
  int status = 0;
  std::string output;
};
RunResult RunToEnd(std::vector<std::string> args, std::map<std::string, std::string> environment = {});

// A job whose every task has a dense TF_CONFIG with fixed loopback addresses.
class TestJob {
 public:
  struct Options {
    uint32_t ps = 2, workers = 2;
    bool chief = false, evaluator = false;
    std::string config = "tests/integration/digits.json";
    // Every task's --set, after the transport under test.
    std::vector<std::string> set;
  };
  explicit TestJob(Options options);

  // "ps:0", "ps:1", "worker:0", ... in the order of a cluster spec: servers, chief, workers, evaluator.
  const std::vector<std::string>& tasks() const { return tasks_; }
  const std::string& address(const std::string& task) const { return addresses_.at(task); }
  std::vector<std::string> ps_addresses() const;
  // The task's TF_CONFIG.
  std::string TfConfig(const std::string& task) const;
  // {"ps": [...], "worker": [...]}
  std::string ClusterJson() const;
  // ps_server or worker, with --config, all --set and, for ps:0, --summary.
  std::vector<std::string> Args(const std::string& task) const;
  const TestFolder& folder() const { return folder_; }

  // Starts a task, or starts it again; the earlier process is forgotten, and killed if it still runs.
  TestProcess& Start(const std::string& task, const std::vector<std::string>& more_args = {});
  // Without TF_CONFIG: `args` hold what the task needs.
  TestProcess& StartWith(const std::string& task, const std::vector<std::string>& args,
                         const std::map<std::string, std::string>& environment);
  // Starts workers last: an evaluator waits to join by then, since a job may take less time than an
  // evaluator's start.
  void StartAll();
  TestProcess& operator[](const std::string& task) { return *processes_.at(task); }

  // From now on this object asks for the status over TLS.
  void UseTls(std::shared_ptr<const Tls> tls) { tls_ = std::move(tls); }
  // Waits until the coordinator's status is as wanted.
  v1::ClusterStatus WaitForStatus(const std::string& what,
                                  const std::function<bool(const v1::ClusterStatus&)>& wanted);
  // Waits until the status shows the task in this state.
  void WaitForTask(const std::string& task, const std::string& state);
  // Waits until this many pushes were applied.
  void WaitForPushes(uint64_t pushes);
  // Each task that was started exits with `status` by itself.
  void ExpectAllExit(int status = 0);
  void ExpectExit(const std::string& task, int status, std::chrono::milliseconds limit = kHangLimit);
  // ps:0's summary, once ps:0 has ended.
  nlohmann::json Summary() const;

 private:
  const Options options_;
  const TestFolder folder_;
  std::vector<std::string> tasks_;
  std::map<std::string, ReservedPort> ports_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, std::unique_ptr<TestProcess>> processes_;
  int started_ = 0;
  std::shared_ptr<const Tls> tls_;
};

// Checks every field that a job's summary must have, with the values of a job that has ended well.
void CheckSummary(const nlohmann::json& summary, const std::string& mode, uint32_t ps, uint32_t workers,
                  uint64_t examples);

}  // namespace weir
