// A job with embedding tables whose checkpoints, most of them of changes alone, lie in object storage.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "cli/commands/grpc_status_client.h"
#include "tests/common/object_store/s3_server.h"
#include "tests/integration/table_run.h"

namespace weir {
namespace {

TEST_CASE(
    "sync: servers are lost after some checkpoints of changes in object storage: no bit of a row differs") {
  S3Server server;
  // For the processes that the test starts, and for itself.
  for (const auto& [name, value] : server.environment()) setenv(name.c_str(), value.c_str(), 1);
  server.SetFaults("seed=1&rate=0.02&kinds=500,503,cut,lost,truncated");
  const std::string directory = absl::StrCat("s3://", S3Server::kBucket, "/chain");
  const std::vector<std::string> set = {
      absl::StrCat("checkpoint={\"directory\": \"", directory, "\", \"every_steps\": 1000}"),
      "cluster.server_wait_seconds=30"};
  const TableRun same = {2, 2, With(set, {"train.examples=72"}), {"few,slow", "few,slow"}};
  {
    JobOfTables t(same);
    t.StartAll();
    // However long the store takes: the workers stand still meanwhile.
    uint64_t step = 0;
    for (int checkpoint = 0; checkpoint < 4; ++checkpoint) {
      t.WaitForStep(step + 1);
      for (const char* worker : {"worker:0", "worker:1"}) t.job[worker].Signal(SIGSTOP);
      const auto taken = StatusClient(t.job.address("ps:0")).TakeCheckpoint(absl::FromChrono(kHangLimit));
      REQUIRE(taken.status() == absl::OkStatus());
      step = taken->step();
      for (const char* worker : {"worker:0", "worker:1"}) t.job[worker].Signal(SIGCONT);
    }
    CHECK_THAT(t.job["ps:0"].log(), Catch::Contains("on 3 earlier checkpoints"));
    t.Kill({"ps:0", "ps:1", "worker:0", "worker:1"});
  }
  server.SetFaults("");
  DamagedLink link(directory);
  link.CheckFound();
  link.Repair();
  {
    JobOfTables t(same);
    t.StartAll();
    t.WaitForStep(6);
    t.KillAndRestart("ps:1");
    t.job.ExpectAllExit(0);
  }
  // The rest of the steps, on other servers.
  JobOfTables last({3, 1, set, {"few"}});
  last.StartAll();
  last.job.ExpectAllExit(0);
  CHECK((last.Rows() == TrainTablesSerially({}, {}, /*few=*/true)));
  CHECK(last.job.Summary()["tables_sha256"] == SerialTablesSha256({}, {}, /*few=*/true));
}

}  // namespace
}  // namespace weir
