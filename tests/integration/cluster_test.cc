// The roles of a cluster as a user starts them by hand: real processes, each with its own TF_CONFIG or flags.
#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

// digits at 12 epochs is enough for 95%.
constexpr uint64_t kExamples = 12 * 1500;
const std::vector<std::string> kShort = {"train.epochs=12"};

void CheckTrained(const TestJob& job, const std::string& mode, uint32_t ps, uint32_t workers) {
  const nlohmann::json summary = job.Summary();
  CheckSummary(summary, mode, ps, workers, kExamples);
  CHECK(summary["test_accuracy"] >= 0.95);
}

TEST_CASE("two servers and two workers, started by hand with a TF_CONFIG each, train and exit 0",
          "[transports]") {
  TestJob job({.set = kShort});
  job.StartAll();
  job.ExpectAllExit(0);
  CheckTrained(job, "sync", 2, 2);
  for (const char* server : {"ps:0", "ps:1"}) CHECK_THAT(job[server].log(), Contains("the job is done"));
}

TEST_CASE("the training loss of a sync job repeats to the last bit, whoever computes what") {
  std::vector<nlohmann::json> losses;
  // Parts are not shared anew: one worker has all of them, and of three each has one.
  for (const uint32_t workers : {3, 3, 1}) {
    TestJob job({.workers = workers, .set = {"train.epochs=3", "consistency.parts=3"}});
    job.StartAll();
    job.ExpectAllExit(0);
    losses.push_back(job.Summary()["train_loss"]);
    CHECK(losses.back() > 0);
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] == losses[2]);
}

TEST_CASE("workers may start before the servers, and the servers in any order", "[transports]") {
  TestJob job({.set = kShort});
  std::vector<std::string> order = job.tasks();
  std::reverse(order.begin(), order.end());
  // worker:1, worker:0, ps:1, ps:0: at first no task finds its peers.
  for (const std::string& task : order) {
    job.Start(task);
    if (task == "ps:1") job["ps:1"].WaitForLog("listens on");
  }
  job.ExpectAllExit(0);
  CheckTrained(job, "sync", 2, 2);
}

TEST_CASE("--cluster and --task, with a chief and an evaluator", "[transports]") {
  TestJob job({.workers = 1,
               .chief = true,
               .evaluator = true,
               .set = {"train.epochs=12", "consistency.mode=bounded", "consistency.staleness=2",
                       "evaluation.interval_seconds=0.1"}});
  const std::string spec = job.folder().Write("cluster.json", job.ClusterJson());
  for (const std::string& task : job.tasks()) {
    std::vector<std::string> args = job.Args(task);
    args.insert(args.end(), {"--cluster=" + spec, "--task=" + task});
    job.StartWith(task, args, {});
  }
  job.ExpectAllExit(0);
  CheckTrained(job, "bounded", 2, 2);
  CHECK(job.Summary()["staleness_bound"] == 2);
  // The evaluator reports while the others train, and at the end.
  const std::string evaluator = job["evaluator:0"].log();
  CHECK_THAT(evaluator, Contains(" evaluation at version ") && Contains("final evaluation at version "));
  CHECK_THAT(job["ps:0"].log(), Contains("evaluator:0 joined as a reader") &&
                                    Contains("chief:0 joined as rank 0") &&
                                    Contains("worker:0 joined as rank 1"));
  // The chief evaluates at the end as well: the weights that the summary describes.
  CHECK_THAT(job["chief:0"].log(), Contains("final evaluation at version "));
}

TEST_CASE("each task sees only its part of the cluster: dynamic specs", "[transports]") {
  TestJob job({.set = {"train.epochs=12", "consistency.mode=async", "cluster.workers=2"}});
  const auto task_config = [&](const nlohmann::json& cluster, const std::string& type, int index) {
    return nlohmann::json{{"cluster", cluster}, {"task", {{"type", type}, {"index", index}}}}.dump();
  };
  const nlohmann::json servers = {job.address("ps:0"), job.address("ps:1")};
  for (int index : {0, 1}) {
    const std::string ps = "ps:" + std::to_string(index), worker = "worker:" + std::to_string(index);
    const nlohmann::json own_server = {{"worker", nlohmann::json::object()},
                                       {"ps", nlohmann::json::array({job.address(ps)})}};
    job.StartWith(ps, job.Args(ps), {{"TF_CONFIG", task_config(own_server, "ps", index)}});
    const nlohmann::json own_worker = {{"worker", {{std::to_string(index), job.address(worker)}}},
                                       {"ps", servers}};
    job.StartWith(worker, job.Args(worker), {{"TF_CONFIG", task_config(own_worker, "worker", index)}});
  }
  job.ExpectAllExit(0);
  CheckTrained(job, "async", 2, 2);
}

TEST_CASE("a worker without a cluster runs the whole job in its process") {
  const TestFolder folder;
  const RunResult run = RunToEnd({"worker/worker", "--config=configs/digits.json", "--set", "train.epochs=12",
                                  "--summary=" + folder.path("summary.json")});
  INFO(run.output);
  REQUIRE(run.status == 0);
  const nlohmann::json summary = nlohmann::json::parse(ReadWholeFile(folder.path("summary.json")));
  CheckSummary(summary, "sync", 1, 1, kExamples);
  CHECK(summary["test_accuracy"] >= 0.95);
}

TEST_CASE("a server binds port 0 of its address and says which port it got") {
  // The dynamic form, where no other task needs to know the port beforehand.
  const TestFolder folder;
  const std::string spec = R"({"cluster": {"ps": ["127.0.0.1:0"]}, "task": {"type": "ps", "index": 0}})";
  TestProcess server({"ps_server/ps_server", "--config=configs/digits.json", "--set", "train.epochs=1",
                      "--port_file=" + folder.path("port")},
                     {{"TF_CONFIG", spec}}, folder.path("server.log"));
  const std::string port = server.WaitForFile(folder.path("port"));
  const nlohmann::json cluster = {
      {"worker", {{"0", "127.0.0.1:1"}}},
      {"ps", nlohmann::json::array({"127.0.0.1:" + std::to_string(std::stoi(port))})}};
  const nlohmann::json tf_config = {{"cluster", cluster}, {"task", {{"type", "worker"}, {"index", 0}}}};
  const RunResult worker =
      RunToEnd({"worker/worker", "--config=configs/digits.json", "--set", "train.epochs=1"},
               {{"TF_CONFIG", tf_config.dump()}});
  INFO(worker.output);
  CHECK(worker.status == 0);
  CHECK(server.Wait() == 0);
}

}  // namespace
}  // namespace weir
