// A worker whose cluster spec has a wrong address: a server of another job, or another server of its own.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

std::vector<std::string> Settings(const std::string& mode) {
  std::vector<std::string> set = {"train.epochs=0.5", "server.min_shard_kib=0", "consistency.mode=" + mode};
  if (mode == "bounded") set.push_back("consistency.staleness=1");
  return set;
}

// Starts the job's worker with these servers in its spec.
TestProcess& StartWorker(TestJob& job, const std::vector<std::string>& servers) {
  const nlohmann::json spec = {{"cluster", {{"ps", servers}, {"worker", {job.address("worker:0")}}}},
                               {"task", {{"type", "worker"}, {"index", 0}}}};
  return job.StartWith("worker:0", job.Args("worker:0"), {{"TF_CONFIG", spec.dump()}});
}

void StartServers(TestJob& job) {
  for (const char* server : {"ps:0", "ps:1"}) job.Start(server);
  for (const char* server : {"ps:0", "ps:1"}) job[server].WaitForLog("listens on");
}

TEST_CASE("a stray worker of a job with the same config, rank and clock does not touch another job") {
  const std::string mode = GENERATE(as<std::string>(), "sync", "async");
  INFO(mode);
  std::string alone;
  {
    TestJob job({.workers = 1, .set = Settings(mode)});
    job.StartAll();
    job.ExpectAllExit(0);
    alone = job.Summary()["weights_sha256"];
  }
  // Slow, so that it runs until the stray worker has called.
  TestJob victim({.workers = 1, .set = With(Settings(mode), {"debug.worker_delay=0.3"})});
  victim.StartAll();
  victim.WaitForStatus("its worker is live",
                       [](const v1::ClusterStatus& status) { return status.state() == v1::RUNNING; });
  TestJob stray({.workers = 1, .set = Settings(mode)});
  StartServers(stray);
  TestProcess& worker = StartWorker(stray, {stray.address("ps:0"), victim.address("ps:1")});
  CHECK(worker.Wait() == 78);
  const std::string log = worker.log();
  CHECK_THAT(log, Contains("ps:1 at " + victim.address("ps:1")) && Contains("has reached another server") &&
                      Contains("this is ps:1 of job 'digits' (") &&
                      Contains("but the call is for ps:1 of a job with the id "));
  victim.ExpectAllExit(0);
  CHECK(victim.Summary()["weights_sha256"] == alone);
}

TEST_CASE("a worker whose spec has its servers in another order is told which server answered") {
  TestJob job({.workers = 1, .set = Settings("sync")});
  StartServers(job);
  TestProcess& worker = StartWorker(job, {job.address("ps:1"), job.address("ps:0")});
  CHECK(worker.Wait() == 78);
  CHECK_THAT(worker.log(), Contains("this is ps:1 of ") && Contains("but the call is for ps:0"));
  // With the right spec the job runs.
  StartWorker(job, {job.address("ps:0"), job.address("ps:1")});
  job.ExpectAllExit(0);
}

TEST_CASE("a ps:0 whose spec has its servers in another order ends, and so does the job") {
  const bool recoverable = GENERATE(false, true);
  TestFolder folder;
  std::vector<std::string> set = Settings("sync");
  if (recoverable) set.push_back("checkpoint.directory=" + folder.path("checkpoints"));
  TestJob job({.ps = 3, .workers = 1, .set = set});
  const nlohmann::json spec = {{"cluster",
                                {{"ps", {job.address("ps:0"), job.address("ps:2"), job.address("ps:1")}},
                                 {"worker", {job.address("worker:0")}}}},
                               {"task", {{"type", "ps"}, {"index", 0}}}};
  // The servers know only their own addresses: otherwise they might tell ps:0 before it calls.
  for (const std::string server : {"ps:1", "ps:2"}) {
    const std::string alone = R"({"cluster": {"ps": [")" + job.address(server) +
                              R"("]}, "task": {"type": "ps", "index": )" + server[3] + "}}";
    job.StartWith(server, job.Args(server), {{"TF_CONFIG", alone}});
  }
  for (const char* server : {"ps:1", "ps:2"}) job[server].WaitForLog("listens on");
  TestProcess& coordinator = job.StartWith("ps:0", job.Args("ps:0"), {{"TF_CONFIG", spec.dump()}});
  CHECK(coordinator.Wait() == 78);
  CHECK_THAT(coordinator.log(), Contains(" is another server: this is ps:") && Contains("takes it for ps:"));
}

}  // namespace
}  // namespace weir
