#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/local_cluster/local_cluster.h"
#include "cli/report/console.h"
#include "proto/job_config.pb.h"

// What is asked of `weir up`, and what follows from that and from the job's config before anything starts.
namespace weir {

struct UpOptions {
  std::string config;
  std::vector<std::string> program;    // what each worker runs, with its arguments; empty: `worker`
  std::vector<std::string> overrides;  // "a.b=value"; the last one for a field wins
  int ps = 1;
  std::optional<int> workers;  // default: the config's cluster.workers, or 1
  std::optional<uint64_t> seed;
  std::string device = "auto";  // --device of workers and evaluator
  bool evaluator = false;
  bool tls = false;              // mutual TLS between the tasks
  std::optional<int> http_port;  // of ps:0; 0: any free one
  std::string summary;           // JSON for programs; "": none
  std::string log_dir;           // "": a fresh temporary folder, which is removed if all went well
  bool keep_logs = false;        // keeps that folder
  std::string bin_dir;           // of ps_server and worker; "": beside this program
  bool verbose = false;          // shows all lines of all tasks
  int restart = 0;               // how often each task that died is started again
  std::string resume;            // a folder of checkpoints: goes on from the newest; "": a new job
  std::string init_from;         // a checkpoint, or a folder of them, whose weights a new job starts with
};

struct JobPlan {
  std::string name;
  LocalCluster::Options cluster;  // all but the folder of logs
  int restart = 0;                // how often each task that died is started again
  bool saves = false;             // the job has checkpoints
  bool skips_workers = false;     // it goes on without a worker whose gradient is not finite
  size_t needed_workers = 0;      // for the job to begin
  absl::Duration lease;
};

// The config that `weir up` runs with these options.
struct UpConfig {
  v1::JobConfig config;
  std::vector<std::string> overrides;  // that make it of the file
};
absl::StatusOr<UpConfig> ConfigOfUp(const UpOptions& options);

// Finds everything that is wrong and can be found without a task: each error is for a person to correct.
// `console` outlives the result. Shows there which checkpoint the job starts from.
absl::StatusOr<JobPlan> PlanJob(const UpOptions& options, Console& console);

// Looks at the checkpoints that a job is to start from, before anything is started. Returns a line for people
// about them; "": the job starts anew. `resume`: the job goes on with the job of `directory`, and there must
// be a checkpoint. Otherwise there must be none, so that two jobs never share a folder by accident. In both
// cases `directory` must be a folder that this user can write to or make. Errors name the field, the path and
// what to do.
absl::StatusOr<std::string> FindStart(const v1::CheckpointConfig& checkpoint, bool resume);

}  // namespace weir
