#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/hosts/host_list.h"
#include "cli/local_cluster/job_cluster.h"
#include "cli/report/console.h"
#include "proto/job_config.pb.h"

// The options of `weir up`, and the plan that follows from them and the job's config before anything starts.
namespace weir {

struct UpOptions {
  // As the flags give it; PlanJob() adds the rest. `log_dir`: "" for a fresh temporary folder, which is
  // removed if all went well. `http_port`: 0 for any free port.
  JobCluster::Options cluster;
  std::optional<int> workers;  // default: the config's cluster.workers, or 1
  std::optional<uint64_t> seed;
  std::string summary;     // JSON for programs; "": none
  bool keep_logs = false;  // keeps the temporary folder
  std::string bin_dir;     // of ps_server and worker; "": beside this program
  int restart = 0;         // how often each task that died is started again
  std::string resume;      // a folder of checkpoints, to continue from the newest; "": a new job
  std::string init_from;   // a checkpoint, or a folder of them, whose weights a new job starts with
  std::string hosts;       // a file or a list (ReadHosts); "": this machine
};

struct JobPlan {
  std::string name;
  JobCluster::Options cluster;  // all but the folder of logs
  int restart = 0;              // as in UpOptions
  bool saves = false;           // the job has checkpoints
  bool skips_workers = false;   // the job continues without a worker whose gradient is not finite
  size_t needed_workers = 0;    // to begin the job
  absl::Duration lease;
};

// The config that `weir up` runs with these options, on these hosts (none: on this machine).
struct UpConfig {
  v1::JobConfig config;
  std::vector<std::string> overrides;  // that make `config` from the file
};
absl::StatusOr<UpConfig> ConfigOfUp(const UpOptions& options, const std::vector<Host>& hosts = {});

// Plans a job. Finds all mistakes that can be found before a task runs: each error is for a person to
// correct. Shows on `console`, which outlives the result, which checkpoint the job starts from.
absl::StatusOr<JobPlan> PlanJob(const UpOptions& options, Console& console);

// Looks for the checkpoints that a job is to start from, before anything starts. Returns a line for people
// about them; "": the job starts anew. If `resume`, the job continues the job of `directory`, which must hold
// a checkpoint. Otherwise `directory` must hold no checkpoint, so that two jobs never share a folder by
// accident. In both cases this user must be able to make `directory`, or to write to it. Errors name the
// field, the path and what to do.
absl::StatusOr<std::string> FindStart(const v1::CheckpointConfig& checkpoint, bool resume);

// Sizes that follow from a job's config and its data on this machine.
struct JobSizes {
  std::optional<int64_t> parameters;
  // The memory that a worker takes at most, without the program itself and messages in transit.
  std::optional<int64_t> worker_bytes;
  std::string unknown;  // why sizes are unknown, or what else is
};

// Asks the program `worker`, which reads the beginnings of the data's files. InvalidArgument: data are there
// and do not fit the model, or are damaged. NotFound, Internal: the program is not there or cannot run.
absl::StatusOr<JobSizes> FindJobSizes(const std::string& config, const std::vector<std::string>& overrides);

}  // namespace weir
