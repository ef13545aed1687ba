// A cluster whose addresses follow from names, and a task that follows from a pod's name.
#include "common/config/dns_cluster.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/config/cluster_spec.h"

namespace weir {
namespace {

using Addresses = std::vector<std::string>;

constexpr const char* kCluster = "dns:ps=weir-ps:2,worker=weir-worker:4";

TaskEnvironment Read(const std::string& cluster, const std::string& task, const Pod& pod = {}) {
  auto environment = FromEnvironment(nullptr, cluster, task, pod);
  INFO(environment.status().ToString());
  REQUIRE(environment.ok());
  REQUIRE(environment->has_value());
  return **std::move(environment);
}

std::string Error(const std::string& cluster, const std::string& task, const Pod& pod = {}) {
  const auto environment = FromEnvironment(nullptr, cluster, task, pod);
  return environment.ok() ? "accepted" : std::string(environment.status().message());
}

Pod Named(const std::string& name, const std::string& completion_index = "") {
  return {name, "POD_NAME", completion_index};
}

std::string TaskOf(const std::string& cluster, const Pod& pod) {
  return Read(cluster, "pod", pod).task.ToString();
}

TEST_CASE("the addresses of a cluster follow from services and counts") {
  const TaskEnvironment ps = Read(kCluster, "ps:1");
  CHECK(ps.address == "weir-ps-1.weir-ps:2222");
  CHECK(ps.cluster.ps_addresses() == Addresses{"weir-ps-0.weir-ps:2222", "weir-ps-1.weir-ps:2222"});
  CHECK(ps.cluster.num_workers() == 4u);
  CHECK_FALSE(ps.cluster.IsDynamic());
  CHECK(ps.cluster.AddressOf({"worker", 3}) == "weir-worker-3.weir-worker:2222");

  const TaskEnvironment chief =
      Read("dns:ps=ps.training.svc:1:3333,master=c:1,worker=w:2,evaluator=e:1:1", "chief");
  CHECK(chief.address == "c-0.c:2222");
  CHECK(chief.cluster.ps_addresses() == Addresses{"ps-0.ps.training.svc:3333"});
  CHECK(chief.cluster.num_workers() == 3u);
  CHECK(chief.cluster.AddressOf({"evaluator", 0}) == "e-0.e:1");

  // JobSet's names, and those of Kubeflow's operator.
  const ClusterSpec other = *ReadClusterSpec("dns:ps=job-ps-0-*.job:2,worker=job-worker-*.ns.svc:11");
  CHECK(other.ps_addresses() == Addresses{"job-ps-0-0.job:2222", "job-ps-0-1.job:2222"});
  CHECK(other.AddressOf({"worker", 10}) == "job-worker-10.ns.svc:2222");
}

TEST_CASE("a derived cluster without workers does not say how many there are, but means its indexes") {
  CHECK(Read("dns:ps=weir-ps:1", "ps:0").cluster.num_workers() == std::nullopt);
  CHECK(Error("dns:ps=weir-ps:1", "ps:1") ==
        "--task=ps:1: task: ps:1 is not in the cluster at --cluster:1:1, which has ps:0");
}

TEST_CASE("what is wrong with a derived cluster is named with its column") {
  struct Case {
    std::string cluster;
    std::string expected;
  };
  const std::string form = "must be JOB=NAME:COUNT or JOB=NAME:COUNT:PORT, such as ps=weir-ps:2; got ";
  const std::vector<Case> cases = {
      {"dns:", "--cluster:1:5: " + form + "\"\""},
      {"dns:ps=a:2,", "--cluster:1:12: " + form + "\"\""},
      {"dns:ps=a", "--cluster:1:8: ps: " + form + "\"ps=a\""},
      {"dns:ps=a:2:3:4", "--cluster:1:8: ps: " + form},
      {"dns:weir-ps:2", "--cluster:1:5: " + form + "\"weir-ps:2\""},
      {"dns:ps=a:2,wroker=b:2",
       "--cluster:1:12: must be a job, one of ps, worker, chief (or master), evaluator; got \"wroker\" (did "
       "you mean \"worker\"?)"},
      {"dns:ps=a:2,ps=b:2", "--cluster:1:12: the job ps is already there, at --cluster:1:5"},
      {"dns:chief=a:1,master=b:1", "--cluster:1:15: the job chief is already there, at --cluster:1:5"},
      {"dns:ps=a:0", "--cluster:1:10: ps: the count must be in 1..1024; got \"0\""},
      {"dns:ps=a:1025", "--cluster:1:10: ps: the count must be in 1..1024; got \"1025\""},
      {"dns:ps=a:two", "--cluster:1:10: ps: the count must be"},
      {"dns:ps=a:-1", "--cluster:1:10: ps: the count must be"},
      {"dns:ps=a:", "--cluster:1:10: ps: the count must be"},
      {"dns:ps=a:1,chief=b:2", "--cluster:1:20: chief: the count must be 1, since there is one chief"},
      {"dns:ps=a:1:0", "--cluster:1:12: ps: the port must be in 1..65535, got 0"},
      {"dns:ps=a:1:65536", "--cluster:1:12: ps: address \"a-0.a:65536\" has the port \"65536\""},
      {"dns:ps=:1", "--cluster:1:8: ps: the name \"\" must be a service's name in DNS"},
      {"dns:ps=Weir:1", "--cluster:1:8: ps: the name \"Weir\" must be a service's name in DNS"},
      {"dns:ps=a..b:1", "--cluster:1:8: ps: the name \"a..b\" must be"},
      {"dns:ps=a_b:1", "--cluster:1:8: ps: the name \"a_b\" must be"},
      {"dns:ps=a b:1", "--cluster:1:8: ps: the name \"a b\" must be"},
      {"dns:ps=a-:1", "--cluster:1:8: ps: the name \"a-\" must be"},
      {"dns:ps=*-*.a:1", "--cluster:1:8: ps: the name \"*-*.a\" has more than one *"},
      {"dns:ps=" + std::string(59, 'a') + ":1", "--cluster:1:8: ps: the name \""},
      {"dns:ps=a." + std::string(251, 'b') + ":1", "--cluster:1:8: ps: the name \""},
      {"dns:ps=weir-*.a:2,worker=weir-*.a:2",
       "--cluster:1:26: cluster.worker[0]: address \"weir-0.a:2222\" is also that of cluster.ps[0], at "
       "--cluster:1:8; each task needs its own"},
      {"dns:worker=a:1", "--cluster:1:1: cluster.ps: lists no server, and worker:0 cannot train without one"},
  };
  for (const Case& c : cases) {
    INFO(c.cluster);
    const std::string error = Error(c.cluster, "worker:0");
    INFO(error);
    CHECK(absl::StartsWith(error, c.expected));
  }
  CHECK(Error("dns:ps=" + std::string(58, 'a') + ":1,worker=w:1", "worker:0") == "accepted");
  CHECK(absl::StartsWith(Error(kCluster, ""), "--cluster:1:1: task: is missing: which task is this?"));
}

TEST_CASE("a pod's task follows from its name") {
  CHECK(TaskOf(kCluster, Named("weir-ps-1")) == "ps:1");
  CHECK(TaskOf(kCluster, Named("weir-worker-3")) == "worker:3");
  CHECK(Read(kCluster, "pod", Named("weir-ps-1")).address == "weir-ps-1.weir-ps:2222");
  CHECK(TaskOf("dns:ps=ps.training.svc:2,chief=ps-c:1", Named("ps-c-0")) == "chief:0");
  // One base may begin another.
  CHECK(TaskOf("dns:ps=weir:2,worker=weir-0:2", Named("weir-0")) == "ps:0");
  CHECK(TaskOf("dns:ps=weir:2,worker=weir-0:2", Named("weir-0-1")) == "worker:1");

  // An Indexed Job's pod has a suffix after its index.
  CHECK(TaskOf(kCluster, Named("weir-worker-2-x7k2p", "2")) == "worker:2");
  CHECK(TaskOf(kCluster, Named("weir-worker-2", "2")) == "worker:2");
  CHECK(TaskOf("dns:ps=job-ps-0-*.job:2,worker=w:1", Named("job-ps-0-1-abcde", "1")) == "ps:1");
  for (const char* index : {"", "1", "x7k2p"}) {
    CHECK(absl::StartsWith(Error(kCluster, "pod", Named("weir-worker-2-x7k2p", index)),
                           "--task=pod: the pod \"weir-worker-2-x7k2p\" (from POD_NAME) is no task of the "
                           "cluster at --cluster:1:1, whose pods are weir-ps-0..weir-ps-1 (ps), "
                           "weir-worker-0..weir-worker-3 (worker); correct the names there"));
  }
}

TEST_CASE("a pod that the spec does not have is refused with what to edit") {
  CHECK(
      Error(kCluster, "pod", Named("weir-ps-2")) ==
      "--task=pod: the pod \"weir-ps-2\" (from POD_NAME) would be ps:2, but the cluster at --cluster:1:1 has "
      "2 tasks of ps, weir-ps-0..weir-ps-1 (ps), weir-worker-0..weir-worker-3 (worker); raise the count of "
      "ps there for all tasks, or scale these pods down to 2");
  CHECK(absl::StrContains(Error(kCluster, "pod", Named("weir-worker-4-x7k2p", "4")),
                          "would be worker:4, but the cluster at --cluster:1:1 has 4 tasks of worker"));
  CHECK(absl::StrContains(Error("dns:ps=weir.a:2,worker=weir.b:1", "pod", Named("weir-0")),
                          "is ps:0 and also worker:0 of the cluster at --cluster:1:1; give the jobs names"));
  CHECK(Error("", "pod", Named("weir-ps-0")) ==
        "--task=pod: there is no cluster for it; give --cluster=FILE, --cluster=dns:... or TF_CONFIG");
}

TEST_CASE("a pod finds its task in any cluster, and other ways to name the task are as before") {
  const char* tf_config =
      R"({"cluster": {"ps": ["job-ps-0.ns:2222"], "worker": ["job-worker-0.ns:2222", "job-worker-1.ns:2222"]},
          "task": {"type": "worker", "index": 0}})";
  const Pod pod = Named("job-worker-1");
  CHECK((*FromEnvironment(tf_config, "", "pod", pod))->task.ToString() == "worker:1");
  CHECK((*FromEnvironment(tf_config, "", "", pod))->task.ToString() == "worker:0");
  CHECK((*FromEnvironment(tf_config, "", "ps:0", pod))->task.ToString() == "ps:0");
  // The cluster of the flag, the task of TF_CONFIG.
  const auto mixed = FromEnvironment(tf_config, kCluster, "", pod);
  REQUIRE(mixed.ok());
  CHECK((*mixed)->address == "weir-worker-0.weir-worker:2222");
  // With both flags TF_CONFIG is not read.
  CHECK((*FromEnvironment("{ broken", kCluster, "pod", Named("weir-ps-0")))->task.ToString() == "ps:0");
  CHECK(absl::StrContains(
      FromEnvironment(R"({"cluster": {"ps": ["unix:/s"], "worker": ["unix:/w"]}})", "", "pod", pod)
          .status()
          .message(),
      "whose pods are none, since it has no host names"));
}

TEST_CASE("a process's own pod") {
  setenv("POD_NAME", "weir-PS-1", 1);
  setenv("JOB_COMPLETION_INDEX", "7", 1);
  const Pod given = Pod::Current();
  CHECK(given.name == "weir-ps-1");
  CHECK(given.source == "POD_NAME");
  CHECK(given.completion_index == "7");
  unsetenv("POD_NAME");
  unsetenv("JOB_COMPLETION_INDEX");
  const Pod host = Pod::Current();
  CHECK_FALSE(host.name.empty());
  CHECK_FALSE(absl::StrContains(host.name, '.'));
  CHECK(host.source == "the host name");
  CHECK(host.completion_index.empty());
}

}  // namespace
}  // namespace weir
