// A small model on many servers: those that hold no part of it (server.min_shard_kib).
#include <signal.h>

#include <string>

#include "catch2/catch.hpp"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

TestJob::Options Standby(const char* mode) {
  TestJob::Options options;
  options.ps = 3;
  options.set = {"server.min_shard_kib=1024", std::string("consistency.mode=\"") + mode + "\""};
  return options;
}

TEST_CASE("a small model trains to the same bits with servers that stand by") {
  TestJob::Options options = Standby("sync");
  std::string expected;
  {
    TestJob alone({.ps = 1, .set = options.set});
    alone.StartAll();
    alone.ExpectAllExit();
    expected = alone.Summary().at("weights_sha256");
  }
  TestJob job(options);
  job.StartAll();
  job.ExpectAllExit();
  CHECK(job.Summary().at("weights_sha256") == expected);
  CHECK_THAT(job["ps:0"].log(), Contains("2 workers on 1 shard (of 3 servers, since the model is small"));
}

TEST_CASE("a server that stands by may die, come back and die again") {
  TestJob::Options options = Standby("async");
  options.set.emplace_back("train.examples=1000000000000");
  options.set.emplace_back("train.epochs=null");
  TestJob job(options);
  job.StartAll();
  // Before the job trains, all servers must be there.
  job.WaitForPushes(1);
  for (const char* server : {"ps:1", "ps:2"}) job.WaitForTask(server, "standby");
  job["ps:2"].Signal(SIGKILL);
  job.ExpectExit("ps:2", 128 + SIGKILL);
  job.WaitForTask("ps:2", "expected");
  const auto pushes = [&job] {
    return job.WaitForStatus("any", [](const v1::ClusterStatus&) { return true; }).pushes();
  };
  job.WaitForPushes(pushes() + 10);
  job.Start("ps:2");
  job.WaitForTask("ps:2", "standby");
  job["ps:1"].Signal(SIGTERM);
  job.ExpectExit("ps:1", 143);
  job.WaitForPushes(pushes() + 10);
  // ps:0 has the model.
  job["ps:0"].Signal(SIGTERM);
  job.ExpectExit("ps:0", 143);
  for (const char* task : {"ps:2", "worker:0", "worker:1"}) job.ExpectExit(task, 138);
}

}  // namespace
}  // namespace weir
