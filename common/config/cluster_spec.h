#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/task.h"

// The cluster, and this process's task in it: TF_CONFIG as TensorFlow and Kubeflow's operators write it,
//
//   {"cluster": {"ps": ["a:2222", "b:2222"], "worker": ["c:2222"], "chief": ["d:2222"]},
//    "task": {"type": "ps", "index": 1}}
//
// or, for dynamic workers, a part of it in which a task sees itself and what it needs ("cluster" may be
// "sparseCluster"):
//
//   worker 1: {"cluster": {"worker": {"1": "c:2222"}, "ps": ["a:2222", "b:2222"]},
//              "task": {"type": "worker", "index": 1}}
//   ps 1:     {"cluster": {"worker": {}, "ps": ["b:2222"]}, "task": {"type": "ps", "index": 1}}
//
// In such a part the one address of a task's own job means the task itself, whatever the index. A server's
// part does not say where ps:0 is.
//
// "master" is another word for "chief". Keys and jobs that are not known are ignored. An address is
// HOST:PORT, [IPv6]:PORT or unix:PATH; nothing is resolved here.
namespace weir {

// A value. Invariants: job names are those of Task::type, no job is empty, no two tasks have one address
// (except with port 0).
class ClusterSpec {
 public:
  // By job, then index.
  using Jobs = std::map<std::string, std::map<uint32_t, std::string>>;

  ClusterSpec() = default;
  ClusterSpec(Jobs jobs, bool dynamic) : jobs_(std::move(jobs)), dynamic_(dynamic) {}

  const Jobs& jobs() const { return jobs_; }
  // nullopt if the task is not listed.
  std::optional<std::string> AddressOf(const Task& task) const;
  // In the order of the indexes.
  std::vector<std::string> ps_addresses() const;

  // Returns whether only a part of the cluster is listed, as for a task of a cluster with dynamic workers.
  bool IsDynamic() const { return dynamic_; }
  // The number of workers that train, the chief included. nullopt if the spec is dynamic, which does not say
  // it.
  std::optional<uint32_t> num_workers() const;
  // Rank among the workers that train: the chief's is 0, and the workers follow. nullopt for ps and
  // evaluator.
  std::optional<uint32_t> WorkerRank(const Task& task) const;

 private:
  Jobs jobs_;
  bool dynamic_ = false;
};

struct TaskEnvironment {
  ClusterSpec cluster;
  Task task;
  // The task's own address; its port may be 0, "any free one". Empty for an evaluator that the cluster does
  // not list.
  std::string address;
};

// A cluster as seen from outside: `text` is {"ps": [...], "worker": [...]} or a whole TF_CONFIG, whose task
// is ignored. Errors are InvalidArgument with "source:line:column: field.path: what".
absl::StatusOr<ClusterSpec> ParseClusterSpec(absl::string_view text, absl::string_view source);

// The cluster that `cluster`, a value of --cluster, stands for: a file, or a line "dns:..." (dns_cluster.h).
// Errors are those of ParseClusterSpec().
absl::StatusOr<ClusterSpec> ReadClusterSpec(const std::string& cluster);

// This process's task and cluster. `tf_config` is the variable's value or nullptr; `cluster` and `task` are
// flags, empty if not given, and each wins over its part of TF_CONFIG. `cluster` is as for ReadClusterSpec; a
// task in its file comes after --task and before TF_CONFIG's. `task` may be "pod": then `pod`'s name says
// which task of the cluster this is, wherever the cluster comes from. nullopt: there is no cluster, so
// everything runs in one process.
absl::StatusOr<std::optional<TaskEnvironment>> FromEnvironment(const char* tf_config,
                                                               const std::string& cluster,
                                                               const std::string& task, const Pod& pod);

}  // namespace weir
