// Embedding tables in jobs of real processes: what all rows are at the end.
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/program/exit_codes.h"
#include "nlohmann/json.hpp"
#include "tests/cli/weir_process.h"
#include "tests/integration/table_run.h"

namespace weir {
namespace {

using Catch::Contains;

// ---- the same bits

void CheckSync(const TableRun& run) {
  JobOfTables t(run);
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK((t.Rows() == TrainTablesSerially(run.set)));
  // Of rows and values, whatever the number of servers.
  CHECK(t.job.Summary()["tables_sha256"] == SerialTablesSha256(run.set));
}

TEST_CASE("sync: all rows have the bits of a serial loop: 1 server, 1 worker") { CheckSync({1, 1, {}, {}}); }
TEST_CASE("sync: all rows have the bits of a serial loop: 1 server, 3 workers", "[transports]") {
  CheckSync({1, 3, {}, {}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: 2 servers, 2 workers", "[transports]") {
  CheckSync({2, 2, {}, {}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: 3 servers, 1 worker") { CheckSync({3, 1, {}, {}}); }
TEST_CASE("sync: all rows have the bits of a serial loop: 3 servers, 3 workers", "[transports]") {
  CheckSync({3, 3, {}, {"both", "-", "both"}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: they take many messages", "[transports]") {
  CheckSync({2, 2, {LongRows(), "wire.chunk_kib=256", "wire.chunks_in_flight=3"}, {"both", "-"}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: in bfloat16 on the wire", "[transports]") {
  CheckSync({2, 2, {"wire.dtype=bf16"}, {"both", "-"}});
}

TEST_CASE("sync: all rows have the bits of a serial loop when a worker is killed", "[transports]") {
  JobOfTables t({2, 2, {"cluster.min_workers=1", "cluster.lease_seconds=3"}, {"-", "dies"}});
  t.StartAll();
  t.job.ExpectExit("worker:1", 128 + 9);
  for (const char* task : {"ps:0", "ps:1", "worker:0", "evaluator:0"}) t.job.ExpectExit(task, 0);
  CHECK((t.Rows() == TrainTablesSerially({})));
}

TEST_CASE(
    "sync: a job that goes on from its checkpoint on other servers has the bits of one that never stopped") {
  const TestFolder saved;
  const std::string checkpoint =
      absl::StrCat("checkpoint={\"directory\": \"", saved.path("checkpoints"), "\"}");
  // Half of the work.
  JobOfTables first({2, 2, {checkpoint, "train.examples=48"}, {}});
  first.StartAll();
  first.job.ExpectAllExit(0);
  const AllRows all = TrainTablesSerially({});
  CHECK((first.Rows() != all));
  JobOfTables second({3, 1, {checkpoint}, {}});
  second.StartAll();
  second.job.ExpectAllExit(0);
  CHECK((second.Rows() == all));
}

TEST_CASE(
    "sync: a job goes on from checkpoints of changes alone, with the same bits: a server is lost, then all") {
  const TestFolder saved;
  const std::string checkpoints = saved.path("checkpoints");
  const std::vector<std::string> set = {
      absl::StrCat("checkpoint={\"directory\": \"", checkpoints, "\", \"every_steps\": 1}"),
      "cluster.lease_seconds=3"};
  {
    JobOfTables t({2, 2, set, {"few,slow", "few,slow"}});
    t.StartAll();
    t.job["ps:0"].WaitForLog("on 2 earlier checkpoints");
    t.job["ps:1"].Signal(SIGKILL);
    CHECK(t.job["ps:1"].Wait() == 128 + SIGKILL);
    t.job.Start("ps:1");
    // The chain goes on from the checkpoint that the job went back to.
    t.job["ps:0"].WaitForLog("on 5 earlier checkpoints");
    for (const char* task : {"ps:0", "ps:1", "worker:0", "worker:1"}) t.job[task].Signal(SIGKILL);
    for (const char* task : {"ps:0", "ps:1"}) CHECK(t.job[task].Wait() == 128 + SIGKILL);
  }
  const auto newest = LatestComplete(FileSystem::Posix(), checkpoints);
  REQUIRE(newest.status() == absl::OkStatus());
  CHECK(newest->manifest.chain_size() >= 5);
  CHECK(CheckpointReader::Open(FileSystem::Posix(), newest->folder)->Verify() == absl::OkStatus());
  const std::vector<std::string> same = {absl::StrCat("checkpoint={\"directory\": \"", checkpoints, "\"}")};
  JobOfTables second({3, 1, same, {"few"}});
  second.StartAll();
  second.job.ExpectAllExit(0);
  CHECK((second.Rows() == TrainTablesSerially({}, {}, /*few=*/true)));
  CHECK(second.job.Summary()["tables_sha256"] == SerialTablesSha256({}, {}, /*few=*/true));
}

// ---- every update counts once

void CheckCounts(const TableRun& run) {
  JobOfTables t(run);
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK((t.Rows() == CountKeys()));
}

TEST_CASE("bounded: every update of every row counts", "[transports]") {
  CheckCounts({2,
               3,
               {"consistency={\"mode\": \"bounded\", \"staleness\": 1}", CountingTables()},
               {"count", "count", "count"}});
}
TEST_CASE("async: every update of every row counts", "[transports]") {
  CheckCounts({3, 2, {"consistency={\"mode\": \"async\"}", CountingTables()}, {"count", "count"}});
}
TEST_CASE("async: every update of every row counts when a worker is killed") {
  JobOfTables t({2,
                 2,
                 {"consistency={\"mode\": \"async\"}", "cluster.min_workers=1", "cluster.lease_seconds=3",
                  CountingTables()},
                 {"count,slow", "count,dies"}});
  t.StartAll();
  t.job.ExpectExit("worker:1", 128 + 9);
  for (const char* task : {"ps:0", "ps:1", "worker:0", "evaluator:0"}) t.job.ExpectExit(task, 0);
  CHECK((t.Rows() == CountKeys()));
}

// ---- what tools see

nlohmann::json Table(std::vector<std::string> command) {
  command.insert(command.begin(), "table");
  command.push_back("--json");
  const WeirResult result = Weir(command);
  INFO(result.output);
  REQUIRE(result.code == 0);
  return nlohmann::json::parse(result.output);
}

TEST_CASE("weir table shows the rows of a running job, and those of its checkpoint") {
  const TestFolder saved;
  JobOfTables t({2,
                 1,
                 {"consistency={\"mode\": \"async\"}", CountingTables(),
                  absl::StrCat("checkpoint={\"directory\": \"", saved.path("checkpoints"), "\"}")},
                 {"count,waits"}});
  const std::string go = t.folder.path("rows.go");
  REQUIRE(mkfifo(go.c_str(), 0600) == 0);
  t.StartAll();
  std::map<uint64_t, float> counts;
  for (uint64_t batch = 0; batch < kPushesBeforeWait; ++batch) {
    for (uint64_t key : TableKeysOf(batch, 1)) ++counts[key];
  }
  const v1::ClusterStatus status =
      t.job.WaitForStatus("rows of four pushes", [&](const v1::ClusterStatus& s) {
        return s.tables_size() == 2 && s.tables(1).all().rows() == counts.size();
      });
  CHECK(status.tables(1).all().admitted() == counts.size());
  const std::string job = "--address=" + t.job.address("ps:0");
  const nlohmann::json stats = Table({"stats", "items/deep", job});
  CHECK(stats[0]["all"]["rows"] == counts.size());
  CHECK(stats[0]["shards"].size() == 2);

  std::vector<std::string> get = {"get", "items/deep"};
  for (uint64_t key : AllTableKeys()) get.push_back(std::to_string(key));
  get.push_back(job);
  const nlohmann::json rows = Table(get)["rows"];
  REQUIRE(rows.size() == AllTableKeys().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t key = AllTableKeys()[i];
    CAPTURE(key);
    CHECK(rows[i]["key"] == key);
    CHECK(rows[i]["exists"] == (counts.count(key) > 0));
    CHECK(rows[i]["version"] == kPushesBeforeWait);
    CHECK(rows[i]["values"].get<std::vector<float>>() == std::vector<float>(16, counts[key]));
  }
  const WeirResult none = Weir({"table", "get", "item", "1", job});
  CHECK(none.code == kExitConfig);

  std::ofstream(go) << "\n";
  t.job.ExpectAllExit(0);
  get.back() = "--checkpoint=" + saved.path("checkpoints");
  const nlohmann::json kept = Table(get)["rows"];
  const AllRows all = CountKeys();
  for (size_t i = 0; i < kept.size(); ++i) {
    // The last rows are those of this table.
    const float value = all[all.size() - (kept.size() - i) * 16];
    CHECK(kept[i]["exists"] == (value != 0));
    if (value != 0) CHECK(kept[i]["values"].get<std::vector<float>>() == std::vector<float>(16, value));
  }
}

// ---- rows that do not wait for their step

TEST_CASE("sync, tables async: every update of every row counts", "[transports]") {
  CheckCounts({2, 3, {"consistency.tables=async", CountingTables()}, {"count", "count,both", "count"}});
}
TEST_CASE("bounded, tables async: every update of every row counts") {
  CheckCounts({2,
               3,
               {R"(consistency={"mode": "bounded", "staleness": 1, "tables": "async"})", CountingTables()},
               {"count", "count", "count"}});
}
TEST_CASE("sync, tables async: the summary says so") {
  JobOfTables t({1, 1, {"consistency.tables=async", CountingTables()}, {"count"}});
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK(t.job.Summary()["mode"] == "sync");
  CHECK(t.job.Summary()["tables"] == "async");
}
TEST_CASE(
    "sync, tables async: an update counts once when a job goes on from its checkpoint on other servers") {
  const TestFolder saved;
  const std::string checkpoint =
      absl::StrCat("checkpoint={\"directory\": \"", saved.path("checkpoints"), "\"}");
  const std::string async = "consistency.tables=async";
  JobOfTables first({2, 2, {async, checkpoint, "train.examples=48", CountingTables()}, {"count", "count"}});
  first.StartAll();
  first.job.ExpectAllExit(0);
  JobOfTables second({3, 2, {async, checkpoint, CountingTables()}, {"count", "count"}});
  second.StartAll();
  second.job.ExpectAllExit(0);
  CHECK((second.Rows() == CountKeys()));
}

// ---- what is not finite

std::string Spoilt() {
  return absl::StrCat("the gradient of table 'items/deep', key ",
                      TableKeysOf(kSpoiltBatch, kSpoiltTable)[kSpoiltKey], ", column ", kSpoiltColumn,
                      " is NaN");
}

TEST_CASE("a NaN in a row: with reject the step goes without that part") {
  JobOfTables t({2, 2, {"consistency.on_nonfinite=reject"}, {"nan", "nan"}});
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK_THAT(t.WorkerLogs(),
             Contains("a push is refused, and done without an update: worker ") && Contains(Spoilt()));
  CHECK((t.Rows() == TrainTablesSerially({}, {kSpoiltBatch})));
}

TEST_CASE("a NaN in a row: with stop it ends every task, by name") {
  JobOfTables t({2, 2, {"consistency.on_nonfinite=stop"}, {"nan", "nan"}});
  t.StartAll();
  for (const char* task : {"ps:0", "ps:1"}) {
    t.job.ExpectExit(task, kExitInternal, kEndLimit);
    CHECK_THAT(t.job[task].log(), Contains("training diverged: worker ") && Contains(Spoilt()));
  }
  for (const char* task : {"worker:0", "worker:1", "evaluator:0"}) {
    t.job.ExpectExit(task, 1);
    CHECK_THAT(t.job[task].log(), Contains(Spoilt()));
  }
}

}  // namespace
}  // namespace weir
