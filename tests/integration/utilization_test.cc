// weir_worker_utilization of real workers.
#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "tests/common/telemetry/http_client.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

// Of a task; -1: the page does not have it.
double UtilizationOf(const std::string& page, const std::string& task) {
  const std::string series = "\nweir_worker_utilization{task=\"" + task + "\"} ";
  const size_t at = page.find(series);
  return at == std::string::npos ? -1 : std::stod(page.substr(at + series.size()));
}

TEST_CASE("the slow worker computes, and the fast one waits for it") {
  // With staleness 0 no worker is ahead of another.
  TestJob job({.ps = 1,
               .workers = 2,
               .set = {"consistency.mode=bounded", "consistency.staleness=0", "debug.worker_delay=0.1",
                       "debug.delayed_worker=0", "train.epochs=null", "train.examples=1000000000000"}});
  const std::string file = job.folder().path("ports");
  std::istringstream ports(job.Start("ps:0", {"--http_port=0", "--port_file=" + file}).WaitForFile(file));
  int port = 0, http_port = 0;
  ports >> port >> http_port;
  job.Start("worker:0");
  job.Start("worker:1");
  const auto deadline = std::chrono::steady_clock::now() + kHangLimit;
  double slow = 0, fast = 1;
  while (slow < 0.6 || fast < 0 || fast > 0.4) {
    const std::string page = HttpGetPage(http_port, "/metrics").body;
    slow = UtilizationOf(page, "worker:0");
    fast = UtilizationOf(page, "worker:1");
    INFO("slow " << slow << ", fast " << fast);
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace
}  // namespace weir
