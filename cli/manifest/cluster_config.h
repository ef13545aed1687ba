#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/job_config.pb.h"

// A job's config as the pods of a cluster run it.
namespace weir {

// Where the claim of checkpoints is mounted in servers (deploy/kustomize/base/servers.yaml).
inline constexpr absl::string_view kCheckpointMount = "/var/lib/weir";

// Which pods a job has.
struct JobPods {
  uint32_t servers = 1, workers = 1;
  bool evaluator = false;
  bool gpu = false;  // for each worker; an evaluator computes on a CPU
  std::string data;  // the folder, absolute, of the data of a program; "": none
};

// Checks `config`, as ParseJobConfig() has read it, with relative paths as they were written. InvalidArgument
// lists all that cannot work in pods, one problem a line: "source: field: what was seen, what is allowed".
absl::Status CheckForCluster(const v1::JobConfig& config, const std::string& source, const JobPods& pods);

// Returns whether the job's checkpoints lie in object storage. The config has passed CheckForCluster().
bool UsesObjectStorage(const v1::JobConfig& config);

// Returns the folder that holds all files of the job's data, where pods mount a volume; "" for data that are
// part of Weir. The paths are absolute.
std::string DataFolder(const v1::DataConfig& data);

}  // namespace weir
