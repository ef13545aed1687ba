// Jobs of real processes, each of which seems to the others to be of the version before this one: an upgrade
// may go process by process.
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/integration/processes.h"
#include "tests/protocol/grpc_earlier_path.h"

namespace weir {
namespace {

bool IsServer(const std::string& task) { return task.rfind("ps:", 0) == 0; }

// A path stands at the address that the spec has for a server; the server has this port on another interface.
constexpr char kInterface[] = "127.0.0.2";

class EarlierJob {
 public:
  explicit EarlierJob(TestJob::Options options) : job_(std::move(options)) {
    for (const std::string& task : job_.tasks()) {
      if (!IsServer(task)) continue;
      const std::string address = job_.address(task);
      const std::string server = kInterface + address.substr(address.rfind(':'));
      paths_[task] = EarlierPath::Start(address, server, earlier_);
    }
  }

  TestJob& job() { return job_; }
  void Start(const std::string& task) {
    std::vector<std::string> more;
    if (IsServer(task)) more = {std::string("--bind=") + kInterface};
    job_.Start(task, more);
  }
  void StartAll() {
    for (const std::string& task : job_.tasks()) Start(task);
  }
  uint64_t Changed(const std::string& server, const std::string& service) const {
    return paths_.at(server)->changed("weir.v1." + service);
  }

 private:
  const EarlierWire earlier_ = LastVersion();
  TestJob job_;
  std::map<std::string, std::unique_ptr<EarlierPath>> paths_;
};

TEST_CASE("sync: with processes of the last version the weights have the same bits") {
  const TestJob::Options options{.set = {"wire.transport=tcp", "train.epochs=2"}};
  TestJob undisturbed(options);
  undisturbed.StartAll();
  undisturbed.ExpectAllExit();
  EarlierJob earlier(options);
  earlier.StartAll();
  earlier.job().ExpectAllExit();
  CHECK(earlier.job().Summary()["weights_sha256"] == undisturbed.Summary()["weights_sha256"]);
  CHECK(earlier.Changed("ps:0", "Coordinator") > 0);
  CHECK(earlier.Changed("ps:1", "ShardControl") > 0);
}

TEST_CASE("a worker whose pushes are quantised does not join a ps:0 of the last version") {
  EarlierJob earlier({.set = {"wire.transport=tcp", "wire.push_dtype=int8"}});
  earlier.StartAll();
  earlier.job().ExpectExit("worker:0", 78);
  CHECK_THAT(earlier.job()["worker:0"].log(), Catch::Contains("wire.push_dtype") && Catch::Contains("1.11"));
}

TEST_CASE("async: servers and workers of the last version are lost, and come back") {
  TestFolder checkpoints;
  EarlierJob earlier({.set = {"wire.transport=tcp", "consistency.mode=async", "train.epochs=4",
                              "debug.worker_delay=0.03", "cluster.server_wait_seconds=60",
                              "server.durability=log", "checkpoint.directory=" + checkpoints.path("runs")}});
  TestJob& job = earlier.job();
  earlier.StartAll();
  uint64_t pushes = 10;
  for (const char* task : {"ps:1", "worker:0", "ps:0"}) {
    job.WaitForPushes(pushes);
    pushes += 30;
    job[task].Signal(SIGKILL);
    job.ExpectExit(task, 128 + SIGKILL);
    earlier.Start(task);
  }
  job.WaitForPushes(pushes);
  job["worker:1"].Signal(SIGTERM);
  job.ExpectExit("worker:1", 143);
  earlier.Start("worker:1");
  job.ExpectAllExit();
  CHECK(job.Summary()["lost_pushes"] == 0);
  CHECK(earlier.Changed("ps:0", "Coordinator") > 0);
  CHECK(earlier.Changed("ps:1", "ShardControl") > 0);
}

}  // namespace
}  // namespace weir
