// A cluster, and the task in it, as TF_CONFIG, a file of --cluster or its line "dns:..." say them.
#include "common/config/address.h"
#include "common/config/cluster_spec.h"
#include "common/config/dns_cluster.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

void Check(const ClusterSpec& cluster) {
  for (const auto& [job, tasks] : cluster.jobs()) {
    FuzzCheck(!tasks.empty(), "no job is empty");
    for (const auto& [index, address] : tasks) {
      FuzzCheck(ParseAddress(address).ok(), "each address can be read");
      FuzzCheck(cluster.AddressOf({job, index}) == address, "a task that is listed is found");
    }
  }
  cluster.num_workers();
  cluster.ps_addresses();
  cluster.WorkerRank({"worker", 0});
}

}  // namespace

bool ReadInput(absl::string_view input) {
  const std::string text(input);
  const Pod pod = {"weir-worker-1", "POD_NAME", "1"};
  bool taken = false;
  // A --cluster that is no line is the name of a file.
  if (IsDnsCluster(input)) {
    const absl::StatusOr<ClusterSpec> cluster = ReadClusterSpec(text);
    if (cluster.ok()) Check(*cluster);
    taken = cluster.ok();
    for (const char* task : {"pod", "ps:1"}) {
      const auto environment = FromEnvironment(nullptr, text, task, pod);
      if (environment.ok() && environment->has_value()) Check((*environment)->cluster);
    }
  } else {
    const absl::StatusOr<ClusterSpec> cluster = ParseClusterSpec(input, "input");
    if (cluster.ok()) Check(*cluster);
    taken = cluster.ok();
  }
  const auto environment = FromEnvironment(text.c_str(), "", "", pod);
  if (!environment.ok() || !environment->has_value()) return taken;
  Check((*environment)->cluster);
  return true;
}

std::vector<std::string> Seeds() {
  return {
      R"({"ps": ["a:2222", "b:2222"], "worker": ["c:2222"]})",
      R"({"cluster": {"ps": ["a:2222", "[::1]:2222"], "worker": ["unix:/tmp/w"], "chief": ["d:2222"]},
          "task": {"type": "ps", "index": 1}, "environment": "cloud"})",
      R"({"cluster": {"worker": {"1": "c:2222"}, "ps": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": "1"}})",
      R"({"sparseCluster": {"worker": {}, "ps": ["b:2222"]}, "task": {"type": "ps", "index": 1}})",
      "dns:ps=weir-ps:2,worker=weir-worker.training.svc:4:3333",
      "dns:ps=weir-ps-0-*.weir:3,worker=weir-worker-*.weir:4",
  };
}

std::vector<std::string> Words() {
  return {
      "\"cluster\"", "\"sparseCluster\"", "\"task\"",      "\"type\"", "\"index\"", "\"ps\"",  "\"worker\"",
      "\"chief\"",   "\"master\"",        "\"evaluator\"", "dns:",     "unix:",     "[::1]:1", ":65536",
      "*",           "4294967296"};
}

}  // namespace weir
