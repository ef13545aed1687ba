#include "common/config/cluster_spec.h"

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/config/address.h"

namespace weir {
namespace {

using Addresses = std::vector<std::string>;

TaskEnvironment Read(const std::string& tf_config, const std::string& cluster_file = "",
                     const std::string& task = "") {
  absl::StatusOr<std::optional<TaskEnvironment>> environment =
      FromEnvironment(tf_config.c_str(), cluster_file, task, {});
  INFO(environment.status().ToString());
  REQUIRE(environment.ok());
  REQUIRE(environment->has_value());
  return **std::move(environment);
}

std::string Error(const char* tf_config, const std::string& cluster_file = "", const std::string& task = "") {
  absl::StatusOr<std::optional<TaskEnvironment>> environment =
      FromEnvironment(tf_config, cluster_file, task, {});
  if (!environment.ok()) return std::string(environment.status().message());
  return environment->has_value() ? "accepted" : "no cluster";
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/", name);
  std::ofstream(path) << text;
  return path;
}

TEST_CASE("A dense spec, as TensorFlow and Kubeflow write it") {
  const TaskEnvironment ps = Read(R"({
    "cluster": {"chief": ["c-0.ns.svc:2222"], "ps": ["ps-0.ns.svc:2222", "ps-1.ns.svc:2222"],
                "worker": ["w-0.ns.svc:2222", "w-1.ns.svc:2222", "w-2.ns.svc:2222"]},
    "task": {"type": "ps", "index": 1},
    "environment": "cloud"})");
  CHECK(ps.task.ToString() == "ps:1");
  CHECK(ps.address == "ps-1.ns.svc:2222");
  CHECK_FALSE(ps.cluster.IsDynamic());
  CHECK(ps.cluster.ps_addresses() == Addresses{"ps-0.ns.svc:2222", "ps-1.ns.svc:2222"});
  CHECK(ps.cluster.num_workers() == 4u);
  CHECK(ps.cluster.WorkerRank({"chief", 0}) == 0u);
  CHECK(ps.cluster.WorkerRank({"worker", 0}) == 1u);
  CHECK(ps.cluster.WorkerRank({"worker", 2}) == 3u);
  CHECK(ps.cluster.WorkerRank({"ps", 0}) == std::nullopt);
  CHECK(ps.cluster.AddressOf({"worker", 2}) == "w-2.ns.svc:2222");
  CHECK(ps.cluster.AddressOf({"worker", 3}) == std::nullopt);
}

TEST_CASE("Without a chief the first worker has rank 0") {
  const TaskEnvironment worker = Read(
      R"({"cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}})");
  CHECK(worker.cluster.WorkerRank(worker.task) == 1u);
  CHECK(worker.cluster.num_workers() == 2u);
}

TEST_CASE("Chief, master and evaluator") {
  const std::string cluster = R"("cluster": {"master": ["m:1"], "ps": ["a:1"], "worker": ["b:1"]})";
  const TaskEnvironment master =
      Read(absl::StrCat("{", cluster, R"(, "task": {"type": "master", "index": 0}})"));
  CHECK(master.task.ToString() == "chief:0");
  CHECK(master.address == "m:1");
  CHECK(Read(absl::StrCat("{", cluster, R"(, "task": {"type": "chief", "index": 0}})")).address == "m:1");
  // An evaluator is not part of the training cluster and need not be listed.
  const TaskEnvironment evaluator =
      Read(absl::StrCat("{", cluster, R"(, "task": {"type": "evaluator", "index": 0}})"));
  CHECK(evaluator.task.ToString() == "evaluator:0");
  CHECK(evaluator.address == "");
  CHECK(evaluator.cluster.WorkerRank(evaluator.task) == std::nullopt);
  CHECK(evaluator.cluster.num_workers() == 2u);
  CHECK(Read(R"({"cluster": {"ps": ["a:1"], "worker": ["b:1"], "evaluator": ["e:1"]},
                 "task": {"type": "evaluator", "index": 0}})")
            .address == "e:1");
}

TEST_CASE("The index may be a number or a string") {
  const std::string start =
      R"({"cluster": {"ps": ["a:1", "b:1"], "worker": ["c:1"]}, "task": {"type": "ps", "index": )";
  CHECK(Read(absl::StrCat(start, "1}}")).address == "b:1");
  CHECK(Read(absl::StrCat(start, "\"1\"}}")).address == "b:1");
}

TEST_CASE("A worker's dynamic spec") {
  const TaskEnvironment worker = Read(
      R"({"cluster": {"worker": {"1": "a:2222"}, "ps": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}})");
  CHECK(worker.address == "a:2222");
  CHECK(worker.cluster.IsDynamic());
  CHECK(worker.cluster.num_workers() == std::nullopt);
  CHECK(worker.cluster.WorkerRank(worker.task) == 1u);
  CHECK(worker.cluster.ps_addresses() == Addresses{"b:2222", "c:2222"});
  // One address means "me", whatever the index.
  const TaskEnvironment other = Read(
      R"({"cluster": {"worker": {"1": "a:2222"}, "ps": ["b:2222"]}, "task": {"type": "worker", "index": 4}})");
  CHECK(other.address == "a:2222");
  CHECK(other.cluster.AddressOf({"worker", 4}) == "a:2222");
  CHECK(other.cluster.AddressOf({"worker", 1}) == std::nullopt);
}

TEST_CASE("A server's dynamic spec has one ps, which is itself") {
  for (const char* cluster :
       {R"("cluster": {"ps": ["b:2222"]})", R"("cluster": {"worker": {}, "ps": ["b:2222"]})",
        R"("cluster": {"worker": null, "chief": null, "ps": ["b:2222"]})",
        R"("sparseCluster": {"worker": {}, "ps": ["b:2222"]})",
        R"("cluster": {"worker": {"0": "w:1"}, "ps": ["b:2222"]})"}) {
    INFO(cluster);
    const TaskEnvironment ps = Read(absl::StrCat("{", cluster, R"(, "task": {"type": "ps", "index": 1}})"));
    CHECK(ps.address == "b:2222");
    CHECK(ps.task.index == 1);
    CHECK(ps.cluster.IsDynamic());
    CHECK(ps.cluster.AddressOf({"ps", 1}) == "b:2222");
    CHECK(ps.cluster.AddressOf({"ps", 0}) == std::nullopt);
  }
}

TEST_CASE("Kubeflow's sparseCluster of a worker") {
  const TaskEnvironment worker = Read(
      R"({"sparseCluster": {"worker": {"2": "w:2222"}, "ps": ["b:2222"]}, "task": {"type": "worker", "index": 2}})");
  CHECK(worker.address == "w:2222");
  CHECK(worker.cluster.IsDynamic());
}

TEST_CASE("No cluster: everything in one process") {
  CHECK(Error(nullptr) == "no cluster");
  for (const char* tf_config : {"", " \n", "{}", R"({"environment": "local"})", R"({"cluster": {}})",
                                R"({"cluster": {}, "task": {"type": "worker", "index": 0}})",
                                R"({"cluster": {}, "task": {"type": "master", "index": "0"}})",
                                R"({"cluster": {"worker": []}, "task": {}})"}) {
    INFO(tf_config);
    CHECK(Error(tf_config) == "no cluster");
  }
}

// What Kubeflow's operator 1.9 writes for tasks of a job with dynamic workers that are no workers or servers.
TEST_CASE("A part of a cluster without servers is no job in one process") {
  for (const char* task : {"chief", "master", "evaluator", "worker"}) {
    for (const char* cluster : {R"({"worker":{},"ps":[]})", R"({"worker":{},"ps":null})", R"({"ps":[]})"}) {
      INFO(task << " " << cluster);
      CHECK_THAT(
          Error(absl::StrCat(R"({"cluster":)", cluster, R"(,"task":{"type":")", task, R"(","index":0}})")
                    .c_str()),
          Catch::Contains("TF_CONFIG:1:") && Catch::Contains(":0 has no cluster") &&
              Catch::Contains("lists no server"));
    }
  }
  CHECK_THAT(Error(R"({"sparseCluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}})"),
             Catch::Contains("lists no server") && Catch::Contains("enableDynamicWorker"));
}

TEST_CASE("Who has a task and no cluster does not train alone unless the cluster is said to be empty") {
  CHECK(Error(R"({"clutser": {"ps": ["a:1"]}, "task": {"type": "worker", "index": 0}})") ==
        "TF_CONFIG:1:2: clutser: is no key (did you mean \"cluster\"?)");
  CHECK(Error(R"({"Cluster": {"ps": ["a:1"]}})") ==
        "TF_CONFIG:1:2: Cluster: is no key (did you mean \"cluster\"?)");
  CHECK(Error(R"({"task": {"type": "worker", "index": 0}})") ==
        "TF_CONFIG:1:10: task: worker:0 has no cluster: \"cluster\" is missing; give it, or write "
        "\"cluster\": {} "
        "for a job in one process");
  CHECK(Error(R"({"cluster": {}, "task": {"type": "worker", "index": 1}})") ==
        "TF_CONFIG:1:25: task: worker:1 has no cluster: \"cluster\" is empty; a job in one process is "
        "worker:0");
  CHECK(Error(R"({"cluster": {}, "task": {"type": "ps", "index": 0}})") ==
        "TF_CONFIG:1:25: task: ps:0 has no cluster: \"cluster\" is empty; a job in one process is worker:0");
}

TEST_CASE("Unknown keys are ignored") {
  const TaskEnvironment ps = Read(
      R"({"cluster": {"ps": ["a:1"], "worker": ["b:1"], "tpu_worker": [1, 2], "x": {"y": 3}}, "rpc_layer": "grpc",
          "task": {"type": "ps", "index": 0, "trial": "", "cloud": {}}, "job": {"args": []}})");
  CHECK(ps.address == "a:1");
  CHECK(ps.cluster.jobs().size() == 2);
}

TEST_CASE("Only the own port may be 0") {
  const TaskEnvironment ps =
      Read(R"({"cluster": {"ps": ["127.0.0.1:0"], "worker": ["b:1"]}, "task": {"type": "ps", "index": 0}})");
  CHECK(ps.address == "127.0.0.1:0");
  CHECK(Error(R"({"cluster": {"ps": ["a:0"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}})") ==
        "TF_CONFIG:1:21: cluster.ps[0]: address \"a:0\" has the port 0, which only a task's own address may "
        "have; use "
        "1..65535");
}

TEST_CASE("What is wrong is named with its field and place") {
  struct Case {
    std::string tf_config;
    std::string expected;
  };
  const std::string dense = R"({"cluster": {"ps": ["a:1", "b:1"], "worker": ["c:1"]}, )";  // 56 characters
  const std::vector<Case> cases = {
      {"{\"cluster\": {\"ps\": [\"a:1\",]}}",
       "TF_CONFIG:1:27: a comma is not allowed before the closing bracket"},
      {"{\"cluster\":", "TF_CONFIG:1:12: unexpected end of input"},
      {"ps", "TF_CONFIG:1:1: invalid literal"},
      {"[]", "TF_CONFIG:1:1: TF_CONFIG must be an object with cluster and task, got a list"},
      {"{\"cluster\": {\"ps\": [\"a:1\"],\n\"ps\": [\"b:1\"]}}",
       "TF_CONFIG:2:1: key \"ps\" is already there, at TF_CONFIG:1:14"},
      {"{\"cluster\": {\"worker\": {\"1\": \"a:1\", \"1\": \"b:1\"}}}",
       "TF_CONFIG:1:37: key \"1\" is already there"},
      {"{\"cluster\": {\"worker\": {\"1\": \"a:1\", \"01\": \"b:1\"}}}",
       "TF_CONFIG:1:37: cluster.worker.01: index 1 is already there, at TF_CONFIG:1:30"},
      {"{\"cluster\": []}", "TF_CONFIG:1:13: cluster: must be an object from job to addresses, got a list"},
      {"{\"cluster\": {\"workers\": [\"a:1\"]}}",
       "TF_CONFIG:1:13: cluster: lists no task; a cluster has addresses for some of ps"},
      {"{\"ps\": [\"a:1\"]}", "TF_CONFIG:1:2: ps: stands outside of \"cluster\""},
      {"{\"cluster\": {\"ps\": \"a:1\"}}",
       "TF_CONFIG:1:20: cluster.ps: must be a list of addresses or an object from index to address, got "
       "\"a:1\""},
      {"{\"cluster\": {\"ps\": [1]}}",
       "TF_CONFIG:1:21: cluster.ps[0]: must be an address as a string, got 1"},
      {"{\"cluster\": {\"worker\": {\"x\": \"a:1\"}}}",
       "TF_CONFIG:1:25: cluster.worker.x: must be a task's index"},
      {"{\"cluster\": {\"worker\": {\"-1\": \"a:1\"}}}",
       "TF_CONFIG:1:25: cluster.worker.-1: must be a task's index"},
      {"{\"cluster\": {\"ps\": [\"a:1\", \"b\"]}}",
       "TF_CONFIG:1:28: cluster.ps[1]: address \"b\" has no port; an address is HOST:PORT, [IPv6]:PORT or "
       "unix:PATH"},
      {"{\"cluster\": {\"chief\": [\"a:1\", \"b:1\"]}}",
       "TF_CONFIG:1:23: cluster.chief: must have one address"},
      {"{\"cluster\": {\"chief\": [\"a:1\"], \"master\": [\"b:1\"]}}",
       "TF_CONFIG:1:32: cluster.master: chief and master are two words for one job"},
      {dense + "\"task\": {\"type\": \"ps\", \"index\": 2}}",
       "TF_CONFIG:1:64: task: ps:2 is not in the cluster at TF_CONFIG:1:13, which has ps:0..1, worker:0"},
      {dense + "\"task\": {\"type\": \"worker\", \"index\": 1}}",
       "TF_CONFIG:1:64: task: worker:1 is not in the cluster"},
      {dense + "\"task\": {\"type\": \"chief\", \"index\": 0}}",
       "TF_CONFIG:1:64: task: chief:0 is not in the cluster"},
      {dense + "\"task\": {\"type\": \"server\", \"index\": 0}}",
       "TF_CONFIG:1:73: task.type: must be one of ps, worker, chief (or master), evaluator, got \"server\""},
      {dense + "\"task\": {\"type\": 1, \"index\": 0}}", "TF_CONFIG:1:73: task.type: must be one of"},
      {dense + "\"task\": {\"type\": \"ps\", \"index\": -1}}",
       "TF_CONFIG:1:88: task.index: must be a whole number from 0, as a number or a string, got -1"},
      {dense + "\"task\": {\"type\": \"ps\", \"index\": \"one\"}}",
       "TF_CONFIG:1:88: task.index: must be a whole number"},
      {dense + "\"task\": {\"type\": \"ps\", \"index\": \"\"}}",
       "TF_CONFIG:1:88: task.index: must be a whole number"},
      {dense + "\"task\": {\"type\": \"ps\", \"index\": 0.0}}",
       "TF_CONFIG:1:88: task.index: must be a whole number"},
      {dense + "\"task\": {\"type\": \"ps\", \"index\": 4294967296}}",
       "TF_CONFIG:1:88: task.index: must be a whole number"},
      {dense + "\"task\": {\"type\": \"ps\"}}", "TF_CONFIG:1:64: task.index: is missing"},
      {dense + "\"task\": {\"index\": 0}}", "TF_CONFIG:1:64: task.type: is missing; one of ps, worker"},
      {dense + "\"task\": \"ps:0\"}",
       "TF_CONFIG:1:64: task: must be an object with type and index, got \"ps:0\""},
      {dense + "\"environment\": \"cloud\"}",
       "TF_CONFIG:1:13: task: is missing: which task is this? Give --task=TYPE:INDEX"},
      {"{\"cluster\": {\"ps\": [\"a:1\"], \"worker\": [\"A:1\"]}, \"task\": {\"type\": \"ps\", \"index\": "
       "0}}",
       "TF_CONFIG:1:40: cluster.worker[0]: address \"a:1\" is also that of cluster.ps[0], at TF_CONFIG:1:21"},
      {"{\"cluster\": {\"ps\": [\"unix:/s\", \"unix:/s\"]}, \"task\": {\"type\": \"ps\", \"index\": 0}}",
       "TF_CONFIG:1:32: cluster.ps[1]: address \"unix:/s\" is also that of cluster.ps[0]"},
      {"{\"cluster\": {\"worker\": [\"a:1\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}",
       "TF_CONFIG:1:13: cluster.ps: lists no server, and worker:0 cannot train without one"},
      {"{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": {\"0\": \"b:1\", \"2\": \"c:1\"}}, \"task\": "
       "{\"type\": \"worker\", "
       "\"index\": 0}}",
       "TF_CONFIG:1:57: cluster.ps.2: ps:1 is not listed; servers are numbered from 0 without gaps"},
  };
  for (const Case& c : cases) {
    INFO(c.tf_config);
    const std::string error = Error(c.tf_config.c_str());
    INFO(error);
    CHECK(absl::StartsWith(error, c.expected));
  }
}

TEST_CASE("--cluster and --task win over TF_CONFIG") {
  const std::string file = WriteFile("bare.json", R"({"ps": ["f:1", "f:2"], "worker": ["f:3"]} // bare)");
  const std::string whole = WriteFile(
      "whole.json",
      R"({"cluster": {"ps": ["g:1", "g:2"], "worker": ["g:3"]}, "task": {"type": "ps", "index": 1}})");
  const std::string tf_config =
      R"({"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}})";
  CHECK(Read(tf_config).address == "b:1");
  CHECK(Read(tf_config, "", "ps:0").address == "a:1");
  CHECK(Read(tf_config, file).address == "f:3");
  CHECK(Read(tf_config, file, "ps:1").address == "f:2");
  CHECK(Read(tf_config, whole).address == "g:2");
  CHECK(Read(tf_config, whole, "worker:0").address == "g:3");
  CHECK(Read("", whole).address == "g:2");
  CHECK(Read("{ broken", file, "ps:0").address == "f:1");
  CHECK(absl::StrContains(Error("{ broken", file), "TF_CONFIG:1:3: "));
  CHECK(absl::StrContains(Error(nullptr, file), "bare.json:1:1: task: is missing"));
  CHECK(absl::StartsWith(Error(nullptr, file, "ps:2"), "--task=ps:2: task: ps:2 is not in the cluster at "));
  CHECK(absl::StartsWith(Error(nullptr, "", "ps:0"), "--task=ps:0: there is no cluster for it"));
  CHECK(absl::StrContains(Error(nullptr, "/nowhere/c.json", "ps:0"),
                          "/nowhere/c.json: cannot be read: No such file or directory"));
}

TEST_CASE("A task in words") {
  CHECK(ParseTask("ps:12", "--task")->ToString() == "ps:12");
  CHECK(ParseTask("master:0", "--task")->ToString() == "chief:0");
  CHECK(ParseTask("chief", "--task")->ToString() == "chief:0");
  CHECK(ParseTask("evaluator", "--task")->ToString() == "evaluator:0");
  for (const char* bad :
       {"", "ps", "worker", "ps:", "ps:-1", "ps:x", "ps:1:2", "PS:0", "server:0", ":0", "ps:4294967296"}) {
    INFO(bad);
    const auto task = ParseTask(bad, "--task");
    REQUIRE_FALSE(task.ok());
    CHECK(absl::StartsWith(task.status().message(), "--task: must be TYPE:INDEX, such as ps:0"));
  }
}

TEST_CASE("A cluster from outside") {
  CHECK(ParseClusterSpec(R"({"ps": ["a:1"], "worker": ["b:1"]})", "c")->num_workers() == 1u);
  CHECK(ParseClusterSpec(R"({"cluster": {"ps": ["a:1"]}, "task": 7})", "c")->ps_addresses() ==
        Addresses{"a:1"});
  CHECK(ParseClusterSpec(R"({"p": ["a:1"]})", "c").status().message() ==
        "c:1:1: cluster: lists no task; a cluster has addresses for some of ps, worker, chief (or master), "
        "evaluator");
  CHECK(absl::StartsWith(ParseClusterSpec(R"({"ps": ["a:0"]})", "c").status().message(),
                         "c:1:9: ps[0]: address"));
}

TEST_CASE("Addresses") {
  for (const char* good :
       {"host:1", "10.0.0.1:65535", "[::1]:2222", "[fe80::1%eth0]:1", "a-b.c_d:0", "unix:/run/x", "unix:x"}) {
    INFO(good);
    REQUIRE(ParseAddress(good).ok());
    CHECK(ParseAddress(good)->ToString() == good);
  }
  CHECK(ParseAddress("Host.Local:1")->ToString() == "host.local:1");
  CHECK(ParseAddress("[::1]:7")->host == "::1");
  CHECK(ParseAddress("[::1]:7")->port == 7);
  struct Case {
    std::string text;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {"", "has no port"},
      {"host", "has no port"},
      {"host:", "has no port"},
      {":1", "has no host"},
      {"host:65536", "has the port \"65536\", which is not in 0..65535"},
      {"host:-1", "has the port \"-1\""},
      {"host:1x", "has the port \"1x\""},
      {"host: 1", "has the port \" 1\""},
      {"::1:2222", "needs brackets around its IPv6 address"},
      {"a:b:1", "has more than one colon"},
      {"http://a:1", "has more than one colon"},
      {"a/b:1", "has characters that no host name has"},
      {"a b:1", "has characters that no host name has"},
      {"[::1]", "has no port"},
      {"[::1", "has no closing bracket"},
      {"[::1]x:1", "has something other than a port after the bracket"},
      {"[host]:1", "has no IPv6 address in its brackets"},
      {"unix:", "has no path"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const auto address = ParseAddress(c.text);
    REQUIRE_FALSE(address.ok());
    INFO(address.status().ToString());
    CHECK(absl::StrContains(address.status().message(), c.reason));
  }
}

TEST_CASE("Mutated specs never crash, and each error has its place") {
  const std::string text =
      R"({"cluster": {"ps": ["a:1", "[::1]:2"], "worker": {"1": "c:1"}, "chief": ["d:1"]}, "task": {"type": "ps", "index": 1}})";
  const std::string alphabet = "{}[]\",:01-a9x/ ";
  std::mt19937_64 random(3);
  int wrong = 0;
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = text;
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % mutated.size();
      if (random() % 3 == 0) {
        mutated.erase(at, 1 + random() % 6);
      } else {
        mutated[at] = alphabet[random() % alphabet.size()];
      }
      if (mutated.empty()) mutated = "{}";
    }
    const auto environment = FromEnvironment(mutated.c_str(), "", "", {});
    accepted += environment.ok();
    wrong += !environment.ok() && !absl::StartsWith(environment.status().message(), "TF_CONFIG:1:");
  }
  CHECK(wrong == 0);
  CHECK(accepted > 500);
}

}  // namespace
}  // namespace weir
