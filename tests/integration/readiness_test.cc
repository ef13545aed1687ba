// /readyz and /healthz of a server, from its start to its end.
#include <signal.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "tests/common/telemetry/http_client.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;

// Starts a server with HTTP; returns the port of its pages.
int StartServer(TestJob& job, const std::string& task) {
  const std::string file = job.folder().path(task + ".port");
  std::istringstream ports(job.Start(task, {"--http_port=0", "--port_file=" + file}).WaitForFile(file));
  int port = 0, http_port = 0;
  ports >> port >> http_port;
  return http_port;
}

HttpPage WaitForStatus(int port, const std::string& path, int status) {
  const auto deadline = std::chrono::steady_clock::now() + kHangLimit;
  while (true) {
    HttpPage page = HttpGetPage(port, path);
    if (page.status == status) return page;
    INFO(path << " is " << page.status << ": " << page.body);
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_CASE("a server is ready while it waits for others, and while it stands by") {
  TestJob job({.ps = 2,
               .workers = 1,
               .set = {"server.min_shard_kib=1024", "train.epochs=null", "train.examples=1000000000000"}});
  const int alone = StartServer(job, "ps:1");
  CHECK(HttpGetPage(alone, "/readyz").status == 200);
  const int coordinator = StartServer(job, "ps:0");
  job.WaitForTask("ps:1", "live");
  // No worker has come.
  CHECK(HttpGetPage(coordinator, "/readyz").status == 200);
  CHECK(HttpGetPage(alone, "/readyz").status == 200);
  job.Start("worker:0");
  job.WaitForPushes(10);
  job.WaitForTask("ps:1", "standby");
  for (const int port : {alone, coordinator}) {
    CHECK(HttpGetPage(port, "/readyz").status == 200);
    CHECK(HttpGetPage(port, "/healthz").status == 200);
  }
  job["ps:0"].Signal(SIGTERM);
  job.ExpectExit("ps:0", 143);
}

TEST_CASE("after SIGTERM a server is alive but not ready, as long as it saves the job") {
  TestJob::Options options;
  const TestFolder checkpoints;
  options.workers = 1;
  options.set = {"server.min_shard_kib=0",
                 "train.epochs=null",
                 "train.examples=1000000000000",
                 "checkpoint.every_steps=1000000",
                 "cluster.lease_seconds=60",
                 "cluster.server_wait_seconds=60",
                 "checkpoint.directory=\"" + checkpoints.path("runs") + "\""};
  TestJob job(options);
  const int coordinator = StartServer(job, "ps:0");
  StartServer(job, "ps:1");
  job.Start("worker:0");
  job.WaitForPushes(10);
  CHECK(HttpGetPage(coordinator, "/readyz").status == 200);
  // The last checkpoint has to wait for this server.
  job["ps:1"].Signal(SIGSTOP);
  job["ps:0"].Signal(SIGTERM);
  const HttpPage page = WaitForStatus(coordinator, "/readyz", 503);
  CHECK_THAT(page.body, Contains("ps:0 got signal 15"));
  CHECK(HttpGetPage(coordinator, "/healthz").status == 200);
  job["ps:1"].Signal(SIGCONT);
  job.ExpectExit("ps:0", 143);
  CHECK_THAT(job["ps:0"].log(), Contains("step-"));
}

}  // namespace
}  // namespace weir
